"""Results on which other results depend: all that eager's engine knows of them, it knows here."""

import gc
import threading
import weakref

import pytest
import torch

import funcaot
from funcaot import config
from funcaot._torch.dynamo import captured
from tests.aot.saved.reloading import reloaded


def used(x, w):
    y = x * w
    return y, y.sin().sum()


def chain(x, w):
    y = (x * w).tanh()
    z = y * w
    return y, z, (z + y).cos()


def written(x, w):
    x.mul_(2)
    return x * w, (x * x).sin()


def parts(x, w):
    first, second = (x * w).split(2)
    return first, second, first.exp()


def beside(x, w):
    y = x * w
    return y, y.detach().sin() * w, (x * 3).sum()


def written_after(x, w):
    y = x * w
    z = y + w
    y.mul_(2)
    return y, z, y.exp()


def retained_inside(x, w):
    y = x * w
    y.retain_grad()
    return y, (y * y).sum()


def same_twice(x, w):
    y = x * w
    return y, y, y.exp()


def nothing_else_returned_as_it_came(x, w):
    y = w * 3
    return x, y, y.exp()


FUNCTIONS = [
    same_twice,
    nothing_else_returned_as_it_came,
    used,
    chain,
    written,
    parts,
    beside,
    written_after,
    retained_inside,
]
LOSSES = {
    "last": lambda results: results[-1].sum(),
    "first": lambda results: (results[0] ** 2).sum(),
    "all": lambda results: sum((each**2).sum() for each in results),
}


def backward(loss, x, w):
    loss.backward()


def twice(loss, x, w):
    loss.backward(retain_graph=True)
    loss.backward()


def of_one(loss, x, w):
    torch.autograd.grad(loss, x, retain_graph=True, allow_unused=True)


def grads(function, loss, run):
    """The ``.grad`` of everything after it was asked to keep it."""
    start = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
    w = torch.linspace(0.5, 0.7, 3, dtype=torch.float64).requires_grad_()
    x = start * 1
    results = function(x, w)
    tensors = [x, *results]
    for tensor in tensors:
        if tensor.requires_grad:
            tensor.retain_grad()
    run(loss(results), start, w)
    return [each.grad for each in (start, w, *tensors)]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("run", [backward, twice, of_one])
def test_the_whole_gradient_is_kept(function, loss, run):
    compiled = funcaot.compile(function, backend="eager")
    if function is beside and run is of_one:
        pytest.skip("eager doesn't go through a result that leads elsewhere, one node does")
    wanted = grads(function, loss, run)
    for _ in range(3):
        torch.testing.assert_close(grads(compiled, loss, run), wanted)


def test_a_view_whose_history_nobody_may_ask_for():
    def function(x, w):
        with torch.no_grad():
            view = x.view(3)
        x.mul_(2)
        return view, x * w

    x, w = torch.ones(3, requires_grad=True) * 1, torch.ones(3, requires_grad=True)
    view, result = funcaot.compile(function, backend="eager")(x, w)
    result.sum().backward()
    assert torch.equal(w.grad, torch.full((3,), 2.0)) and torch.equal(view, w.grad)


def test_where_nothing_was_kept_at_first():
    compiled = funcaot.compile(used, backend="eager")
    for keeps in (False, False, True, False, True):
        grads_of = []
        for function in (used, compiled):
            x = torch.ones(3, requires_grad=True)
            y, loss = function(x, torch.full((3,), 0.5))
            if keeps:
                y.retain_grad()
            loss.backward()
            grads_of.append([x.grad, y.grad if keeps else None])
        torch.testing.assert_close(*grads_of)


def by_each(loss, leaves, results):
    return torch.autograd.grad(loss, results, allow_unused=True)


def by_leaves_too(loss, leaves, results):
    return torch.autograd.grad(loss, [*results, *leaves], allow_unused=True)


def by_edges(loss, leaves, results):
    edges = map(torch.autograd.graph.get_gradient_edge, results)
    return torch.autograd.grad(loss, [*edges], allow_unused=True)


def accumulated(loss, leaves, results):
    loss.backward(inputs=[*results, *leaves])
    return [each.grad for each in (*results, *leaves)]


def again(loss, leaves, results):
    first = torch.autograd.grad(loss, results[0], retain_graph=True, allow_unused=True)
    return [*first, *by_leaves_too(loss, leaves, results)]


def differentiable(loss, leaves, results):
    found = torch.autograd.grad(loss, results, create_graph=True, allow_unused=True)
    squares = [(each**2).sum() for each in found if each is not None and each.requires_grad]
    return [*found, *(torch.autograd.grad(sum(squares), leaves, allow_unused=True))]


def hooked(loss, leaves, results):
    seen = []
    for position, each in enumerate(results):
        each.register_hook(lambda gradient, at=position: seen.append((at, gradient.clone())))
    by_leaves_too(loss, leaves, results)
    return [gradient for _, gradient in sorted(seen, key=lambda pair: pair[0])]


def changed(loss, leaves, results):
    for each in results:
        # None comes where only other results of one node are used, in eager too.
        each.register_hook(lambda gradient: None if gradient is None else gradient * 3 + 1)
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def looks(function, look, chosen):
    start = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
    w = torch.linspace(0.5, 0.7, 3, dtype=torch.float64).requires_grad_()
    results = [each for each in function(start * 1, w) if each.requires_grad]
    loss = sum((each**2).sum() for each in (results if chosen == "all" else results[-1:]))
    return look(loss, (start, w), [*dict.fromkeys(results)])


LOOKS = [by_each, by_leaves_too, by_edges, accumulated, again, differentiable, hooked, changed]


@pytest.mark.parametrize("function", [used, chain, written, parts, written_after, same_twice])
@pytest.mark.parametrize("chosen", ["last", "all"])
def test_whoever_looks_at_a_gradient_sees_the_whole(function, chosen):
    compiled = funcaot.compile(function, backend="eager")
    for look in (*LOOKS, *LOOKS):
        if look is hooked and chosen == "last":
            continue  # Here a hook is called without a gradient, where eager calls none.
        wanted = looks(function, look, chosen)
        torch.testing.assert_close(looks(compiled, look, chosen), wanted, msg=look.__name__)


@pytest.mark.slow
def test_class_activation_maps():
    torch.manual_seed(0)
    body, head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 5)

    def model(x):
        features = body(x).relu()
        return head(features.mean((2, 3))), features

    def map_of(function, size):
        scores, features = function(torch.linspace(-1, 1, 6 * size * size).view(2, 3, size, size))
        (weights,) = torch.autograd.grad(scores[:, 1].sum(), features)
        return (weights.mean((2, 3), keepdim=True) * features).sum(1)

    compiled = funcaot.compile(model)
    for size in (6, 8, 9, 6):
        torch.testing.assert_close(map_of(compiled, size), map_of(model, size))
    assert funcaot.report(compiled).cache_misses == 2


def test_a_hook_on_a_result_that_is_gone():
    found = []
    for function in (used, funcaot.compile(used, backend="eager")):
        x, seen = torch.ones(3, requires_grad=True), []
        y, loss = function(x, torch.full((3,), 0.5))
        y.register_hook(lambda gradient, to=seen: to.append(gradient) or gradient * 2)
        del y
        loss.backward()
        found.append([*seen, x.grad])
    torch.testing.assert_close(*found)


def test_without_the_patch():
    compiled = funcaot.compile(used, backend="eager")
    for name in ("", "captured gradients"):
        captured.is_watching.cache_clear()
        with config.patch(without_patches=name):
            for look in LOOKS:
                torch.testing.assert_close(looks(compiled, look, "all"), looks(used, look, "all"))
    captured.is_watching.cache_clear()


def test_backwards_of_many_threads_at_once():
    x = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
    y, loss = funcaot.compile(used, backend="eager")(x, torch.full_like(x, 0.5))
    wanted = torch.autograd.grad(loss, [y, x], retain_graph=True)
    found, both = [], threading.Barrier(3)

    def run():
        both.wait(20)
        for _ in range(20):
            found.append(torch.autograd.grad(loss, [y, x], retain_graph=True))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 60
    for each in found:
        torch.testing.assert_close(each, wanted)


def test_nothing_is_left_by_backwards_that_only_hand_out():
    x = torch.ones(3, requires_grad=True)
    y, loss = funcaot.compile(used, backend="eager")(x, torch.full((3,), 0.5))
    for _ in range(40):
        torch.autograd.grad(loss, y, retain_graph=True)
    assert len(y.grad_fn.left) <= 16


def test_hooks_by_which_torch_waits_are_called():
    called = []

    def waits(gradient):
        called.append(gradient)

    waits.__module__ = "torch.distributed.fsdp"
    y, loss = funcaot.compile(used, backend="eager")(torch.ones(3, requires_grad=True), 2.0)
    torch.autograd.graph.register_multi_grad_hook([y, loss], waits, mode="any")
    (loss + y.sum()).backward()
    assert len(called) == 1


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
def test_what_was_kept_can_be_differentiated():
    compiled, found = funcaot.compile(used, backend="eager"), []
    for function in (used, compiled, compiled):
        x = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
        y, loss = function(x, 2.0)
        y.retain_grad()
        (loss + y.sum()).backward(create_graph=True)
        found.append(torch.autograd.grad((y.grad**2).sum(), x))
    torch.testing.assert_close(found[1:], found[:1] * 2)


def test_a_result_lives_no_longer_than_its_caller_has_it():
    compiled = funcaot.compile(used, backend="eager")
    gc.disable()
    try:
        for _ in range(3):
            y, loss = compiled(torch.ones(3, requires_grad=True), torch.ones(3))
            alive = weakref.ref(y)
            del y
            assert alive() is None
            loss.backward()
    finally:
        gc.enable()


def test_programs_that_were_saved(tmp_path):
    def gradients_of(function, *, keeps=True):
        x = torch.linspace(0.2, 1.0, 3).requires_grad_()
        y, loss = function(x, torch.full((3,), 0.5))
        if keeps:
            y.retain_grad()
        loss.backward()
        return x.grad, y.grad if keeps else None

    compiled = reloaded(used, lambda f: gradients_of(f, keeps=False), tmp_path / "programs")
    for _ in range(3):
        torch.testing.assert_close(gradients_of(compiled), gradients_of(used))
    assert funcaot.report(compiled).cache_misses == 0
