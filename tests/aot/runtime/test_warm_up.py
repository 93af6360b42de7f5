"""Warming up compiles what calls need, and does nothing else."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

import funcaot
from funcaot.errors import FuncaotError, UnsupportedError
from tests.aot.saved.reloading import compiled_function

BACKENDS = ["eager", "inductor"]


def energy(x, w):
    return (x @ w).tanh().square().sum()


def example(*shape, seed=0):
    torch.manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def meta(*shape):
    return torch.empty(*shape, dtype=torch.float64, requires_grad=True, device="meta")


def counters(compiled):
    found = compiled_function(compiled).settings.statistics
    return found.cache_misses, found.backward_traces, found.graphs_compiled


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_call_and_its_gradient_compile_nothing(backend):
    compiled = funcaot.compile(energy, backend=backend)
    compiled.warm_up(meta(5, 4), meta(4, 3))
    before = counters(compiled)
    assert before[:2] == (1, 1)
    x, w = example(5, 4), example(4, 3)
    for _ in range(3):
        found = torch.autograd.grad(compiled(x, w), (x, w))
        torch.testing.assert_close(found, torch.autograd.grad(energy(x, w), (x, w)))
    assert counters(compiled) == before


def second(function, x, w):
    gradients = torch.autograd.grad(function(x, w), (x, w), create_graph=True)
    return torch.autograd.grad(gradients, (x, w), [torch.ones_like(x), torch.ones_like(w)])


def test_orders():
    compiled = funcaot.compile(energy, backend="eager")
    compiled.warm_up(example(5, 4), example(4, 3), orders=2)
    before = counters(compiled)
    x, w = example(5, 4), example(4, 3)
    torch.testing.assert_close(second(compiled, x, w), second(energy, x, w))
    assert counters(compiled) == before


def test_the_forward_alone():
    compiled = funcaot.compile(energy, backend="eager")
    compiled.warm_up(meta(5, 4), meta(4, 3), orders=0)
    assert counters(compiled)[:2] == (1, 0)
    with torch.no_grad():
        compiled.warm_up(meta(5, 4), meta(4, 3))
        before = counters(compiled)
        torch.testing.assert_close(
            compiled(example(5, 4), example(4, 3)), energy(example(5, 4), example(4, 3))
        )
    assert counters(compiled) == before


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4).double(), None
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.last = x.detach().clone()
        self.total += x.detach().sum()
        x.mul_(2)
        return F.dropout(self.norm(x), 0.5).sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_written_stored_or_drawn(backend):
    torch.manual_seed(0)
    module = Counting()
    hooked = []
    module.norm.weight.register_hook(hooked.append)
    x = example(6, 4).detach()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    versions = [value._version for value in [x, *module.state_dict().values()]]
    numbers, given = torch.get_rng_state(), x.clone()
    compiled = funcaot.compile(module, backend=backend)
    compiled.warm_up(x)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch.equal(x, given)
    assert (module.last, hooked, module.norm.weight.grad) == (None, [], None)
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert versions == [value._version for value in [x, *module.state_dict().values()]]
    compiled(x)
    assert torch.equal(module.last, given)
    assert torch.equal(x, given * 2)


def test_a_whole_step_is_compiled_and_not_taken():
    w = example(4, 3).detach()

    @funcaot.compile(backend="inductor")
    def step(x):
        w.sub_(0.1 * x.t() @ (x @ w))

    before = w.clone()
    x = example(5, 4).detach()
    step.warm_up(x)
    assert torch.equal(w, before)
    known = step.settings.statistics.graphs_compiled
    step(x)
    torch.testing.assert_close(w, before - 0.1 * x.t() @ (x @ before))
    assert step.settings.statistics.graphs_compiled == known == 1


def test_what_can_not_be_warmed_up():
    compiled = funcaot.compile(energy, backend="eager")
    for orders in (-1, 1.0, "2", True):
        with pytest.raises(FuncaotError, match="orders"):
            compiled.warm_up(meta(5, 4), meta(4, 3), orders=orders)
    with pytest.raises(UnsupportedError, match="inside of a transform"):
        torch.func.grad(lambda x: compiled.warm_up(x, x))(torch.ones(3, 3))
    with pytest.raises(ZeroDivisionError):
        funcaot.compile(lambda x: x / (1 // 0), backend="eager").warm_up(meta(3))


def test_a_branch_on_values_is_compiled_for_those_of_the_example():
    compiled = funcaot.compile(lambda x: x.sin() if x.sum() > 0 else -x, backend="eager")
    compiled.warm_up(torch.ones(3, requires_grad=True))
    before = counters(compiled)
    compiled(torch.ones(3, requires_grad=True)).backward(torch.ones(3))
    assert counters(compiled) == before


def rows(x, w):
    return (x @ w).tanh()


def summed(function, x, w):
    function(x, w).sum().backward()


def dense(function, x, w):
    function(x, w).square().sum().backward()


def of_a_sum(function, x, w):
    found = torch.autograd.grad(function(x, w).sum(), (x, w), create_graph=True)
    sum(each.square().sum() for each in found).backward()


def forces(model, x):
    return torch.autograd.grad(model(x).sum(), x)


def loss_of_forces(model, x):
    (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (found.square().sum() + model(x).square().sum()).backward()


def product_with_the_hessian(model, x):
    (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return torch.autograd.grad(found, x, torch.ones_like(found))


@pytest.mark.parametrize(("use", "orders"), [
    (forces, 1), (loss_of_forces, 2), (product_with_the_hessian, 2),
])  # fmt: skip
def test_gradients_of_arguments_alone(use, orders):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    compiled = funcaot.compile(net, backend="eager")
    compiled.warm_up(meta(5, 3), orders=orders)
    before = counters(compiled)
    use(compiled, example(5, 3))
    assert counters(compiled) == before


def test_a_result_that_a_backward_inside_has_used_up():
    model = nn.Linear(3, 1).double()

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    compiled = funcaot.compile(step, backend="eager")
    compiled.warm_up(meta(5, 3).detach())
    before = counters(compiled)
    compiled(example(5, 3).detach())
    assert counters(compiled)[2] == before[2]


def test_a_nested_tensor_without_lengths():
    x = torch.nested.nested_tensor([torch.ones(2, 3, device="meta")] * 2, layout=torch.jagged)
    with pytest.raises(UnsupportedError, match="how long its parts are"):
        funcaot.compile(lambda x: x.sin(), backend="eager").warm_up(x)


def of_sums(orders):
    """Gradients of sums of gradients, ``orders`` of them."""

    def use(function, x, w):
        found = (function(x, w),)
        for _ in range(orders - 1):
            total = sum(each.sum() for each in found)
            found = torch.autograd.grad(total, (x, w), create_graph=True)
        sum(each.sum() for each in found).backward()

    return use


def of_squares(orders):
    """Gradients of squares of gradients: what arrives has a history."""

    def use(function, x, w):
        found = (function(x, w),)
        for _ in range(orders - 1):
            total = sum(each.square().sum() for each in found)
            found = torch.autograd.grad(total, (x, w), create_graph=True)
        sum(each.square().sum() for each in found).backward()

    return use


USES = {
    0: [],
    1: [summed, dense],
    2: [summed, dense, of_a_sum, of_sums(2), of_squares(2)],
    3: [summed, of_sums(2), of_sums(3), of_squares(3)],
}


@pytest.mark.parametrize("orders", USES)
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_derivatives_of_all_orders_up_to_the_last(orders, backend):
    compiled = funcaot.compile(rows, backend=backend)
    compiled.warm_up(meta(5, 4), meta(4, 3), orders=orders)
    before = counters(compiled)
    for use in USES[orders] * 2:
        found = []
        for target in (compiled, rows):
            x, w = example(5, 4), example(4, 3, seed=1)
            use(target, x, w)
            found.append((x.grad, w.grad))
        torch.testing.assert_close(*found)
        assert counters(compiled) == before, use


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
}


def training(make, when):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)).double()
    spare = nn.Parameter(torch.ones(2))
    optimizer = make([*network.parameters(), spare])

    def step(x):
        if when == "before":
            optimizer.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        if when == "after":
            optimizer.zero_grad()
        return loss.detach()

    def left():
        values = [p.detach().clone() for p in network.parameters()]
        return values, [p.grad for p in network.parameters()], [*optimizer.state.values()]

    return step, left


@pytest.mark.parametrize("when", ["before", "after", "never"])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_steps_that_make_gradients_and_state(make, when):
    """A call that makes an optimizer's state is eager's; what follows is compiled by then."""
    step, left = training(OPTIMIZERS[make], when)
    eager, left_by_eager = training(OPTIMIZERS[make], when)
    compiled = funcaot.compile(step, backend="eager")
    before = left()
    x = example(5, 4).detach()
    compiled.warm_up(x)
    torch.testing.assert_close(left(), before)
    known = counters(compiled)
    for index in range(3):
        torch.testing.assert_close(compiled(x + index), eager(x + index))
        torch.testing.assert_close(left(), left_by_eager())
        first = counters(compiled)[0] - known[0]
        assert first <= bool(left()[2])
    assert counters(compiled)[2] == known[2]


def test_hooks_of_optimizers_do_not_run():
    """Neither those of one nor those of all: what these do, nobody knows."""
    called = []
    step, left = training(OPTIMIZERS["Adam"], "before")
    optimizer = step.__closure__[[*step.__code__.co_freevars].index("optimizer")].cell_contents
    optimizer.register_step_post_hook(lambda *_: called.append("own"))
    compiled = funcaot.compile(step, backend="eager")
    x = example(5, 4).detach()
    handle = register_optimizer_step_post_hook(lambda *_: called.append("all"))
    try:
        with pytest.raises(UnsupportedError, match="call it once"):
            compiled.warm_up(x)
    finally:
        handle.remove()
    assert not left()[2]


@pytest.mark.parametrize(
    "use",
    [
        lambda y: y.backward(torch.ones_like(y)),
        lambda y: y.values().sum().backward(),
        lambda y: y.values().backward(torch.ones(5, 4)),
    ],
    ids=["dense", "sum of values", "values"],
)
def test_jagged_tensors(use):
    def rows_of():
        parts = [torch.randn(n, 4) for n in (2, 3)]
        return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)

    compiled = funcaot.compile(lambda x: x.sin() * 2, backend="eager")
    compiled.warm_up(rows_of())
    before = counters(compiled)
    x = rows_of()
    use(compiled(x))
    torch.testing.assert_close(x.grad.values(), 2 * x.values().detach().cos())
    assert counters(compiled) == before
