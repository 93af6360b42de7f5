"""Grad mode switched outside of a compiled function, inside, and left switched, as in eager."""

import itertools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER


def enabled_inside(x, w):
    with torch.enable_grad():
        y = x * w
    return y, x + w


def view_of_a_result(x, w):
    with torch.enable_grad():
        y = (x * w)[0:2]
    return y, y.detach()


def view_of_an_input(x, w):
    with torch.enable_grad():
        y = x[0:2]
    return y, w * 2


def written_with_grad(x, w):
    z = x * 1
    with torch.enable_grad():
        z.mul_(w)
    return z


def written_after(x, w):
    with torch.enable_grad():
        t = x * 2
    t.mul_(3)
    return t, t * w


def disabled_inside(x, w):
    y = x * w
    with torch.no_grad():
        z = y * w
    return y, z, y * z


def view_made_with_grad_mode_off(x, w):
    y = x * w
    with torch.no_grad():
        z = y[0:2]
    return y, z


def written_with_grad_mode_off(x, w):
    y = x * w
    with torch.no_grad():
        y.mul_(2)
    return y, y * x


def nested(x, w):
    with torch.no_grad():
        y = x * w
        with torch.enable_grad():
            z = y * w
        u = z * 2
    return y, z, u


def left_off(x, w):
    y = x * w
    torch.set_grad_enabled(False)
    return y, x * 2


def left_on(x, w):
    y = x * w
    torch.set_grad_enabled(True)
    return y, x * 2


def decorated(x, w):
    @torch.no_grad()
    def double(a):
        return a * 2

    return double(x) + w, double(w)


def gradient_inside(x, w):
    with torch.enable_grad():
        a = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((a * w).sum(), a, create_graph=True)
    return g, g * x


def leaf_made_inside(x, w):
    with torch.enable_grad():
        return x.detach().requires_grad_()


def asks_for_the_mode(x, w):
    return x * w if torch.is_grad_enabled() else x + w


def asks_and_leaves_off(x, w):
    y = x * w if torch.is_grad_enabled() else x + w
    torch.set_grad_enabled(False)
    return y


def asks_and_leaves_on(x, w):
    y = x * w if torch.is_grad_enabled() else x + w
    torch.set_grad_enabled(True)
    return y


def ordinary_values_of_inference_mode(x, w):
    with torch.inference_mode():
        y = x * w
    return x + y.sum()


FUNCTIONS = [value for value in list(globals().values()) if getattr(value, "__code__", None)]


def describe(tensor):
    return (
        tensor.detach().tolist(),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.grad_fn is not None,
        None if tensor.is_inference() else tensor._is_view(),
    )


def outcome(function, outside, needs_grad, *, leaves):
    x, w = torch.arange(3.0) + 1, torch.arange(3.0) + 2
    for tensor, needed in zip((x, w), needs_grad, strict=True):
        tensor.requires_grad_(needed)
    inputs = [tensor for tensor in (x, w) if tensor.requires_grad]
    given = (x, w) if leaves else (x * 1, w * 1)
    try:
        with outside():
            result = function(*given)
            inside_after = torch.is_grad_enabled()
        after = torch.is_grad_enabled()
    except RuntimeError as error:
        return type(error), str(error)[:60]
    finally:
        torch.set_grad_enabled(True)
    outputs = result if isinstance(result, tuple) else (result,)
    recorded = [tensor for tensor in outputs if tensor.requires_grad]
    gradients = []
    if recorded and inputs:
        total = sum((tensor * (i + 2)).sum() for i, tensor in enumerate(recorded))
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    return (
        [describe(tensor) for tensor in (*outputs, *given)],
        [None if gradient is None else gradient.tolist() for gradient in gradients],
        (inside_after, after),
    )


@pytest.mark.parametrize("outside", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_as_in_eager(function, outside):
    if outside is torch.inference_mode and function is leaf_made_inside:
        pytest.skip("a leaf that requires grad made in inference mode")
    compiled = funcaot.compile(function, backend="eager")
    for needs_grad in itertools.product([False, True], repeat=2):
        for leaves in (True, False):
            expected = outcome(function, outside, needs_grad, leaves=leaves)
            for _ in range(3):
                assert outcome(compiled, outside, needs_grad, leaves=leaves) == expected


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_mode_outside_changes_from_call_to_call(function):
    compiled = funcaot.compile(function, backend="eager")
    modes = [torch.enable_grad, torch.no_grad]
    for outside in modes * 3 + modes[::-1] * 2:
        expected = outcome(function, outside, (False, False), leaves=True)
        assert outcome(compiled, outside, (False, False), leaves=True) == expected


def test_other_state_that_is_left_changed_is_refused():
    def function(x):
        torch.set_default_dtype(torch.float64)
        return x * torch.ones(3)

    with pytest.raises(UnsupportedError, match="default_dtype"):
        funcaot.compile(function, backend="eager")(torch.ones(3))
    assert torch.get_default_dtype() is torch.float32


def view_then_product(x, show):
    with torch.inference_mode():
        y = x[0] if show == "row" else x.view_as(x)
    return y * 1, x * 2


def view_returned(x, show):
    with torch.inference_mode():
        return x[0] if show == "row" else x.view_as(x)


def view_written_inside(x, show):
    with torch.inference_mode():
        (x[0] if show == "row" else x.view_as(x)).mul_(2).add_(1)
    return x * x


def view_written_afterwards(x, show):
    with torch.inference_mode():
        y = x[0] if show == "row" else x.expand_as(x)
    y.mul_(2)
    return x * 1


def saved_and_written_in_inference(x, show):
    z = x * 1
    square = z * z
    with torch.inference_mode():
        (z[0] if show == "row" else z.view(-1)).mul_(2)
    return square


def told(function, show, history, mode):
    """Results with their looks, versions, gradients, and what a write to each result does."""
    leaf = torch.arange(9.0).view(3, 3).clone().requires_grad_(history != "none")
    x = leaf * 1 if history == "result" else leaf
    try:
        with mode():
            results = function(x, show)
        results = results if isinstance(results, tuple) else (results,)
        looks = [(t.requires_grad, t.is_leaf, t.is_inference(), t.stride()) for t in results]
        found = [looks, x._version, x.tolist(), [t.tolist() for t in results]]
        if any(t.requires_grad for t in results):
            losses = [t.sum() for t in results if t.requires_grad]
            found.append(torch.autograd.grad(losses, leaf, allow_unused=True)[0].tolist())
        with torch.no_grad():
            for result in results:
                if not result.is_inference():
                    found.append((result.mul_(2).tolist(), x.tolist(), x._version))
    except Exception as error:  # noqa: BLE001  (whatever autograd raises)
        return type(error)
    return found


@pytest.mark.parametrize("show", ["row", "all"])
@pytest.mark.parametrize(
    "function",
    [
        view_then_product,
        view_returned,
        view_written_inside,
        view_written_afterwards,
        saved_and_written_in_inference,
    ],
)
def test_views_in_inference_mode(function, show):
    compiled = funcaot.compile(function, backend=COMPILER)
    for history in ("none", "leaf", "result", "none"):
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            wanted = told(function, show, history, mode)
            assert told(compiled, show, history, mode) == wanted, (history, mode)


VIEWS = {
    "slice": lambda x: x[1:],
    "step": lambda x: x[::2],
    "t": lambda x: x.t(),
    "view_as": lambda x: x.view_as(x),
    "as_strided": lambda x: x.as_strided((2,), (1,), x.storage_offset()),
    "alias": torch.ops.aten.alias,
}
RESULTS = {
    "sum": lambda w, x, y: w.sum() * 2,
    "view": lambda w, x, y: w,
    "beside": lambda w, x, y: (w.sin(), y * 2),
    "beside itself": lambda w, x, y: (w.sin(), x * 2),
    "with another": lambda w, x, y: w.sum() * y,
}


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_without_grad_mode_requires_grad_as_its_base(view, result, backend):
    """Eager says that it does, though no gradient comes through it."""

    def program(x, y):
        with torch.no_grad():
            w = VIEWS[view](x)
        return RESULTS[result](w, x, y)

    def inputs(kind):
        leaf = torch.ones(8, requires_grad=True)
        x = {"leaf": leaf, "result": leaf * 1, "slice": (leaf * 1)[2:], "plain": torch.ones(8)}[
            kind
        ]
        return leaf, x, torch.ones((), requires_grad=True)

    def looks(kind, function):
        leaf, x, y = inputs(kind)
        outputs = function(x, y)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum(o.sum() for o in outputs)
        gradients = [None, None]
        if total.requires_grad:
            gradients = torch.autograd.grad(total, (leaf, y), allow_unused=True)
        return [o.requires_grad for o in outputs], [o.is_leaf for o in outputs], gradients

    compiled = funcaot.compile(program, backend=backend)
    for kind in ("leaf", "result", "slice", "plain", "result"):
        ours, theirs = looks(kind, compiled), looks(kind, program)
        assert ours[:2] == theirs[:2]
        torch.testing.assert_close(ours[2], theirs[2])


def _deterministic(on):
    torch.use_deterministic_algorithms(on, warn_only=on)


SETTINGS = {
    "default dtype": (
        torch.set_default_dtype,
        torch.get_default_dtype,
        torch.float32,
        torch.float64,
    ),
    "deterministic": (_deterministic, torch.are_deterministic_algorithms_enabled, True, False),
    "precision": (
        torch.set_float32_matmul_precision,
        torch.get_float32_matmul_precision,
        "highest",
        "high",
    ),
}


@pytest.mark.filterwarnings("ignore:This call of function ran")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_call_that_is_not_compiled_meets_the_settings_as_they_were(name):
    change, read, before, after = SETTINGS[name]

    def function(x):
        assert read() == before
        change(after)
        return x + 1

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    was = read()
    try:
        for _ in range(2):
            change(before)
            compiled(torch.ones(2))
            assert read() == after
        change(before)
        with pytest.raises(UnsupportedError):
            funcaot.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
        assert read() == before
    finally:
        change(was)
