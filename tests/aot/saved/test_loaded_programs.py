"""Programs from a file compute what eager does, whatever is asked of them."""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import funcaot
from tests.aot.saved.reloading import is_loaded, misses, reloaded

BACKENDS = ["eager", "inductor"]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def network():
    torch.manual_seed(0)
    return Network().double()


def inputs(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def weights():
    torch.manual_seed(2)
    return torch.randn(4, 4, dtype=torch.float64, requires_grad=True)


def energy(x, w):
    return (x @ w).tanh().square().sum(-1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "programs"


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_steps_are_those_of_eager(backend, path):
    def step(model, x):
        loss = model(x).square().sum()
        loss.backward()
        return loss

    compiled = reloaded(network(), lambda model: step(model, inputs(6, 4)), path, backend=backend)
    # What was saved belongs to another object of the class.
    eager, model = network(), network()
    compiled = funcaot.compile(model, backend=backend, artifacts=path)
    for _ in range(3):
        x, y = inputs(6, 4), inputs(6, 4)
        torch.testing.assert_close(step(compiled, x), step(eager, y))
        torch.testing.assert_close(x.grad, y.grad)
        with torch.no_grad():
            for parameter, other in zip(model.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad, other.grad)
                parameter -= 0.1 * parameter.grad
                other -= 0.1 * other.grad
        for buffer, other in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(buffer, other)
            assert buffer._version == other._version
    assert is_loaded(compiled)
    assert misses(compiled) == 0
    model.eval(), eager.eval()
    torch.testing.assert_close(compiled(inputs(6, 4)), eager(inputs(6, 4)))
    assert misses(compiled) == 1


GRADIENTS = {
    "ones": lambda y: torch.ones_like(y),
    "expanded": lambda y: torch.ones((), dtype=y.dtype).expand(y.shape),
    "strided": lambda y: torch.arange(2.0 * y.numel(), dtype=y.dtype)[::2].reshape(y.shape),
    "reversed": lambda y: torch.arange(1.0 * y.numel(), dtype=y.dtype).flip(0).reshape(y.shape),
}


@pytest.mark.parametrize(
    ("backend", "gradient"), [*(("eager", each) for each in GRADIENTS), ("inductor", "strided")]
)
def test_gradients_of_other_layouts_than_were_saved(backend, gradient, path):
    w = weights()
    function = energy

    def first(compiled):
        compiled(inputs(3, 4), w).sum().backward()

    compiled = reloaded(function, first, path, backend=backend)
    for _ in range(3):
        x = inputs(3, 4)
        y = compiled(x, w)
        found = torch.autograd.grad(y, (x, w), GRADIENTS[gradient](y))
        y = energy(x, w)
        torch.testing.assert_close(found, torch.autograd.grad(y, (x, w), GRADIENTS[gradient](y)))
    assert is_loaded(compiled)


def force_loss(function, x, w):
    (force,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
    return torch.autograd.grad(force.square().sum(), (x, w), create_graph=True)


def third(function, x, w):
    gradients = force_loss(function, x, w)
    return torch.autograd.grad(sum(each.sum() for each in gradients), (x, w))


ORDERS = [
    ("eager", saved, wanted)
    for saved in ("forward", "backward", "double backward")
    for wanted in (force_loss, third)
]


@pytest.mark.parametrize(
    ("backend", "saved", "wanted"), [*ORDERS, ("inductor", "double backward", force_loss)]
)
def test_derivatives_of_orders_that_were_saved_and_of_others(backend, saved, wanted, path):
    def first(compiled):
        x, w = inputs(3, 4), weights()
        y = compiled(x, w)
        if saved == "backward":
            y.sum().backward()
        if saved == "double backward":
            force_loss(compiled, x, w)

    compiled = reloaded(energy, first, path, backend=backend)
    for _ in range(3):
        expected = wanted(energy, inputs(3, 4), weights())
        torch.testing.assert_close(wanted(compiled, inputs(3, 4), weights()), expected)
    assert is_loaded(compiled)


def test_a_saved_double_backward_traces_nothing(path):
    compiled = reloaded(
        energy, lambda compiled: force_loss(compiled, inputs(3, 4), weights()), path
    )
    expected = force_loss(energy, inputs(3, 4), weights())
    torch.testing.assert_close(force_loss(compiled, inputs(3, 4), weights()), expected)
    statistics = compiled.settings.statistics
    assert (statistics.cache_misses, statistics.backward_traces) == (0, 0)


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x, w: f(x, w).sum(), argnums=(0, 1)),
    "vmap": lambda f: torch.func.vmap(f, in_dims=(0, None)),
    "jvp": lambda f: lambda x, w: torch.func.jvp(f, (x, w), (x.cos(), w.sin())),
    "hessian": lambda f: torch.func.hessian(lambda x, w: f(x, w).sum()),
    "vmap of grad": lambda f: torch.func.vmap(
        torch.func.grad(lambda x, w: f(x, w).sum()), in_dims=(0, None)
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_a_loaded_function(transform, path):
    def first(compiled):
        compiled(inputs(3, 4), weights()).sum().backward()

    compiled = reloaded(energy, first, path)
    compiled(inputs(3, 4), weights()).sum().backward()
    assert is_loaded(compiled)
    under = TRANSFORMS[transform]
    x, w = inputs(3, 4).detach(), weights().detach()
    for _ in range(2):
        torch.testing.assert_close(under(compiled)(x, w), under(energy)(x, w))


def test_batched_gradients_of_a_loaded_function(path):
    def first(compiled):
        compiled(inputs(3, 4), weights()).sum().backward()

    compiled = reloaded(energy, first, path)
    x, w = inputs(3, 4), weights()
    basis = torch.eye(3, dtype=x.dtype)
    found = torch.autograd.grad(compiled(x, w), (x, w), basis, is_grads_batched=True)
    expected = torch.autograd.grad(energy(x, w), (x, w), basis, is_grads_batched=True)
    torch.testing.assert_close(found, expected)
    found = torch.func.vmap(lambda t: torch.autograd.grad(compiled(x, w), x, t))(basis)
    torch.testing.assert_close(found[0], expected[0])
    assert is_loaded(compiled)


def test_tangents_through_a_loaded_function(path):
    compiled = reloaded(energy, lambda compiled: compiled(inputs(3, 4), weights()), path)
    x, w = inputs(3, 4).detach(), weights().detach()
    compiled(inputs(3, 4), weights())
    results = []
    for function in (compiled, energy):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x.cos())
            results.append(torch.autograd.forward_ad.unpack_dual(function(dual, w)))
    torch.testing.assert_close(*map(tuple, results))


def writes(x, kept):
    kept.mul_(0.5).add_(x.detach())
    y = x.sin()
    y.relu_()
    return y * kept, x.t(), x[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_effects(backend, path):
    def run(function):
        x, kept = inputs(3, 3), torch.ones(3, 3, dtype=torch.float64)
        product, turned, row = function(x, kept)
        (gradient,) = torch.autograd.grad(product.sum() + turned[0].sum() + row.prod(), x)
        return kept, kept._version, product, turned, turned._base is x, row, gradient

    compiled = reloaded(writes, run, path, backend=backend)
    for _ in range(3):
        ours, theirs = run(compiled), run(writes)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other) if isinstance(mine, torch.Tensor) else None
            assert isinstance(mine, torch.Tensor) or mine == other
    assert is_loaded(compiled)


@pytest.mark.parametrize("derivative", ["saved", "traced"])
def test_an_input_that_is_written_to_before_the_backward_is_an_error(derivative, path):
    def function(x, b):
        b.mul_(2)
        return (x * b.clone()).exp() * b

    def first(compiled):
        x, b = inputs(3), torch.ones(3, dtype=torch.float64)
        y = compiled(x, b)
        y.sum().backward() if derivative == "saved" else None

    compiled = reloaded(function, first, path)
    for each in (function, compiled):
        x, b = inputs(3), torch.ones(3, dtype=torch.float64)
        y = each(x, b)
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert is_loaded(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_drawn_anew(backend, path):
    def function(x):
        return F.dropout(x, 0.5)

    def first(compiled):
        compiled(inputs(64)).sum().backward()

    compiled = reloaded(function, first, path, backend=backend)
    kept = []
    for _ in range(2):
        x = torch.ones(64, dtype=torch.float64, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, (y.detach() != 0).double() * 2)
        kept.append(y.detach() != 0)
    assert not torch.equal(*kept)
    assert is_loaded(compiled)


def test_a_function_that_changed_after_its_forward(path):
    """A derivative that isn't in the file would be one of another function."""
    model = network()

    def function(x):
        return model(x).exp() if model.training else model(x)

    compiled = reloaded(function, lambda compiled: compiled(inputs(6, 4)), path)
    y = compiled(inputs(6, 4))
    model.eval()
    with pytest.raises(funcaot.errors.UnsupportedError, match="another one by now"):
        y.sum().backward()
    model.train()
    compiled(inputs(6, 4)).sum().backward()


def test_what_was_loaded_is_saved_again(path, tmp_path):
    def first(compiled):
        compiled(inputs(3, 4), weights()).sum().backward()

    compiled = reloaded(energy, first, path)
    first(compiled)
    compiled(inputs(5, 4), weights())
    again = tmp_path / "again"
    assert compiled.save(again).programs == 2
    third = funcaot.compile(energy, backend="eager", artifacts=again)
    first(third)
    assert is_loaded(third)
    assert third.settings.statistics.backward_traces == 0


def test_a_report_says_where_a_program_is_from(path):
    compiled = reloaded(energy, lambda compiled: compiled(inputs(3, 4), weights()), path)
    compiled(inputs(3, 4), weights())
    compiled(inputs(5, 4), weights())
    loaded, captured = funcaot.report(compiled).entries
    assert loaded.source == str(path)
    assert f"loaded from {path}" in str(funcaot.report(compiled))
    assert not captured.source
    assert captured.graphs


def test_a_policy_is_part_of_what_is_compared(path):
    compiled = reloaded(energy, lambda f: f(inputs(3, 4), weights()), path, policy="save_all")
    other = funcaot.compile(energy, backend="eager", artifacts=path, policy="memory")
    for each in (compiled, other):
        each(inputs(3, 4), weights()).sum().backward()
    assert is_loaded(compiled)
    assert not is_loaded(other)


HOLDER = types.SimpleNamespace()
LEFT_OUT = {
    "a branch on values": (lambda x: x if x.sum() > 0 else -x, {}, "reads values"),
    "an attribute": (lambda x: setattr(x, "seen", 1) or x.sin(), {}, "attribute seen"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_a_file_cannot_hold_is_left_out_and_captured(case, path):
    function, options, message = LEFT_OUT[case]
    compiled = funcaot.compile(function, backend="eager", **options)
    compiled(inputs(3, 4))
    saved = compiled.save(path)
    assert saved.programs == 0
    assert message in str(saved)
    other = funcaot.compile(function, backend="eager", artifacts=path, **options)
    assert_like_eager(other(inputs(3, 4)), function(inputs(3, 4)))
    assert misses(other) == 1
    assert str(path) in funcaot.report(other).entries[0].reason


def assert_like_eager(ours, theirs):
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("function", [torch.sin, torch.nn.Linear(1, 1)], ids=["function", "module"])
def test_what_is_no_path_is_refused(function):
    with pytest.raises(funcaot.errors.FuncaotError, match="isn't a path"):
        funcaot.compile(function, backend="eager", artifacts=3)


def _forces_of(model):
    """What it is given may require grad, and the derivative is taken by another tensor."""

    def function(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(model(x).sin().sum(), x, create_graph=True)[0].square()

    return function


@pytest.mark.parametrize("made", [lambda x: x * 1, lambda x: x])
def test_an_argument_that_no_gradient_reaches(made, path):
    def gradients(function, model, seed):
        torch.manual_seed(seed)
        x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        found = function(made(x))
        found.sum().backward()
        parameters = list(model.parameters())
        result = [found.detach(), x.grad, *[p.grad for p in parameters]]
        for parameter in parameters:
            parameter.grad = None
        return result

    models = [network(), network(), network()]
    first = funcaot.compile(_forces_of(models[0]), backend="eager")
    gradients(first, models[0], 0)
    assert first.save(path).programs == 1
    again = funcaot.compile(_forces_of(models[1]), backend="eager", artifacts=path)
    models[1].load_state_dict(models[0].state_dict())
    models[2].load_state_dict(models[0].state_dict())
    for seed in range(3):
        found = gradients(again, models[1], seed)
        expected = gradients(_forces_of(models[2]), models[2], seed)
        torch.testing.assert_close(found, expected)
    assert misses(again) == 0
