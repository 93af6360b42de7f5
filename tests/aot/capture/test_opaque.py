"""Functions that can't be traced run on real values, once per call, between compiled parts."""

import contextlib

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.testing import assert_close

import funcaot
from funcaot.errors import CaptureWarning

BACKENDS = pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
calls = []


class NumpySin(funcaot.Function):
    """NumPy in forward and in backward."""

    @staticmethod
    def forward(x):
        value = np.sin(x.detach().numpy())
        calls.append("forward")
        return torch.from_numpy(value)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * NumpyCos.apply(x)

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpySin.apply(x), in_dims[0]


class NumpyCos(funcaot.Function):
    @staticmethod
    def forward(x):
        value = np.cos(x.detach().numpy())
        calls.append("cos")
        return torch.from_numpy(value)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return -gradient * NumpySin.apply(x)

    @staticmethod
    def vmap(info, in_dims, x):
        return NumpyCos.apply(x), in_dims[0]


class Branching(funcaot.Function):
    """A branch on values in forward."""

    @staticmethod
    def forward(x):
        return x * 2 if x.sum() > 0 else x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, gradient):
        x, output = ctx.saved_tensors
        return gradient * output / x


class DataPointer(funcaot.Function):
    """What a C extension does: it reads the memory of what it's given."""

    @staticmethod
    def forward(x):
        copy = x + 0
        assert copy.data_ptr() != 0
        return copy * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Abstract(funcaot.Function):
    """Its metadata comes from ``abstract``, so forward isn't run to learn it."""

    @staticmethod
    def forward(x):
        calls.append("forward")
        return torch.from_numpy(x.detach().numpy() * 5)

    @staticmethod
    def abstract(x):
        return torch.empty_like(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


def program(kind):
    def f(x):
        return (kind.apply(x * 2 + 1) * 3).sin().sum()

    return f


@BACKENDS
@pytest.mark.parametrize("kind", [NumpySin, Branching, DataPointer, Abstract])
def test_values_and_gradients_equal_eager(kind, backend):
    f = program(kind)
    compiled = funcaot.compile(f, backend=backend)
    for sign in (1, -1, 1):
        x = (sign * torch.rand(4)).requires_grad_()
        expected = torch.autograd.grad(f(x), x)
        assert_close(compiled(x), f(x))
        assert_close(torch.autograd.grad(compiled(x), x), expected)


@BACKENDS
@pytest.mark.parametrize("kind", [NumpySin, Abstract])
def test_forward_runs_once_per_call(kind, backend):
    compiled = funcaot.compile(program(kind), backend=backend)
    for _ in range(3):
        calls.clear()
        compiled(torch.rand(4))
        assert calls == ["forward"]


@BACKENDS
def test_the_backward_runs_its_functions_once_per_call(backend):
    compiled = funcaot.compile(program(NumpySin), backend=backend)
    for _ in range(3):
        x = torch.rand(4, requires_grad=True)
        y = compiled(x)
        calls.clear()
        y.backward()
        assert calls == ["cos"]


def test_any_order():
    def order(f, x, n):
        y = f(x)
        for _ in range(n):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y

    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    compiled = funcaot.compile(program(NumpySin), backend="eager")
    for n in (1, 2, 3):
        assert_close(order(compiled, x, n), order(program(NumpySin), x, n))


@BACKENDS
def test_vmap_uses_the_functions_own_rule(backend):
    f = program(NumpySin)
    compiled = funcaot.compile(f, backend=backend)
    x = torch.rand(3, 4)
    assert_close(torch.func.vmap(compiled)(x), torch.stack([f(row) for row in x]))


@BACKENDS
def test_grad_and_vmap_of_grad(backend):
    f = program(NumpySin)
    compiled = funcaot.compile(f, backend=backend)
    x = torch.rand(3, 4)
    assert_close(torch.func.grad(compiled)(x[0]), torch.func.grad(f)(x[0]))
    each = torch.stack([torch.func.grad(f)(row) for row in x])
    assert_close(torch.func.vmap(torch.func.grad(compiled))(x), each)


class Picky(NumpySin):
    """Refuses what it is run on to find out what comes out."""

    @staticmethod
    def forward(x):
        if x.shape[0] and float(x.sum()) == x.numel():
            raise ValueError("ones aren't welcome")
        return NumpySin.forward(x)


def test_without_real_values_ones_are_tried():
    compiled = funcaot.compile(lambda x: NumpySin.apply(x), backend="eager")
    assert torch.func.vmap(compiled)(torch.rand(0, 4)).shape == (0, 4)


def test_without_real_values_abstract_is_asked_for(by_level):
    compiled = funcaot.compile(program(Picky), backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError, match="abstract") as caught:
        torch.func.vmap(compiled)(torch.rand(0, 4))
    assert "Picky" in str(caught.value)


class Shrinking(funcaot.Function):
    @staticmethod
    def forward(x):
        return x[: int(x[0])].clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def test_an_output_that_changes_its_shape_is_an_error():
    compiled = funcaot.compile(lambda x: Shrinking.apply(x) + 1, backend="eager")
    assert compiled(torch.tensor([2.0, 1.0, 1.0])).shape == (2,)
    with pytest.raises(funcaot.errors.RuleError, match="Shrinking"):
        compiled(torch.tensor([3.0, 1.0, 1.0]))


def test_random_numbers_before_it_are_drawn_once():
    def f(x):
        return NumpySin.apply(torch.rand(4) + x).sum()

    compiled = funcaot.compile(f, backend="eager")
    x = torch.rand(4)
    for _ in range(2):
        torch.manual_seed(5)
        expected, state = f(x), torch.get_rng_state()
        torch.manual_seed(5)
        assert_close(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), state)


class NumpyBackward(funcaot.Function):
    """A traceable forward with NumPy in backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.factor = 2.0

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        cosine = torch.from_numpy(np.cos(x.detach().numpy()))
        calls.append("backward")
        return gradient * cosine * ctx.factor


class ItemBackward(funcaot.Function):
    """A branch on values in backward, on two inputs, of which one has no gradient."""

    @staticmethod
    def forward(x, n):
        return x * n.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, n = ctx.saved_tensors
        scale = 7.0 if x.sum().item() > 0 else 11.0
        return gradient * n.sum() * scale * x, None


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.exp(x.detach().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * torch.from_numpy(np.exp(x.detach().numpy()))


@BACKENDS
def test_a_backward_in_numpy(backend):
    f = program(NumpyBackward)
    compiled = funcaot.compile(f, backend=backend)
    for _ in range(3):
        x = torch.rand(4, requires_grad=True)
        expected = torch.autograd.grad(f(x), x)
        y = compiled(x)
        calls.clear()
        assert_close(torch.autograd.grad(y, x), expected)
        assert calls == ["backward"]


@BACKENDS
def test_a_backward_that_branches_on_values(backend):
    def f(x, n):
        return (ItemBackward.apply(x, n) * 2).sum()

    compiled = funcaot.compile(f, backend=backend)
    n = torch.rand(2)
    for sign in (1, -1, 1):
        x = (sign * torch.rand(4)).requires_grad_()
        assert_close(torch.autograd.grad(compiled(x, n), x), torch.autograd.grad(f(x, n), x))


def test_double_backward_through_a_backward_that_branches_on_values():
    def second(f, x, n):
        (first,) = torch.autograd.grad(f(x, n).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(3).sum(), x, create_graph=True)[0]

    compiled = funcaot.compile(lambda x, n: ItemBackward.apply(x, n), backend="eager")
    n = torch.rand(2, dtype=torch.float64)
    for sign in (1, -1):
        x = (sign * torch.rand(4, dtype=torch.float64)).requires_grad_()
        ours, theirs = second(compiled, x, n), second(ItemBackward.apply, x, n)
        assert_close(ours, theirs)
        assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x))


@BACKENDS
def test_an_old_style_function_in_numpy(backend):
    f = program(OldStyle)
    compiled = funcaot.compile(f, backend=backend)
    for _ in range(2):
        x = torch.rand(4, requires_grad=True)
        assert_close(compiled(x), f(x))
        assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(f(x), x))


def test_vmap_over_a_backward_in_numpy():
    compiled = funcaot.compile(program(NumpyBackward), backend="eager")
    x = torch.rand(3, 4)
    expected = torch.stack(
        [torch.autograd.grad(program(NumpyBackward)(r), r)[0] for r in x.clone().requires_grad_()]
    )
    assert_close(torch.func.vmap(torch.func.grad(compiled))(x), expected)


def test_the_report_names_what_is_opaque_and_why():
    compiled = funcaot.compile(program(NumpySin), backend="eager")
    compiled(torch.rand(4))
    text = str(funcaot.report(compiled))
    assert "NumpySin (forward: RuntimeError: .numpy() is not supported" in text
    compiled = funcaot.compile(program(ItemThenSum), backend="eager")
    compiled(torch.rand(4, requires_grad=True)).backward()
    assert "ItemThenSumBackward (backward: DataDependentOutput" in str(funcaot.report(compiled))


class ItemThenSum(funcaot.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 if gradient.sum().item() > 0 else gradient


@pytest.mark.parametrize("name", ["cov", "corrcoef", "combinations"])
def test_tangents_of_a_dual_level(name):
    """Of ops that read values; a level of their own would be one inside of another."""
    function = {
        "cov": lambda x: torch.cov(x, fweights=torch.tensor([2, 3])),
        "corrcoef": torch.corrcoef,
        "combinations": lambda x: torch.combinations(x[0]),
    }[name]
    compiled = funcaot.compile(function, backend="eager")
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    with forward_ad.dual_level():
        for scale in (1, 2):
            dual = forward_ad.make_dual(x, x.sin() * scale)
            found, wanted = (forward_ad.unpack_dual(call(dual)) for call in (compiled, function))
            assert_close(found.primal, wanted.primal)
            assert_close(found.tangent, wanted.tangent)


def test_a_kernel_that_conjugates_while_it_is_captured():
    """Below a mode, torch leaves out what resolves a conjugation: r * r.conj() was r * r."""

    def function(a, b):
        return torch.linalg.lstsq(a, b, driver="gels").residuals

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 3, dtype=torch.complex128, generator=generator) for _ in range(2))
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        assert_close(compiled(a, b), function(a, b))


class DrawsAndTakesADictionary(torch.autograd.Function):
    """Reversible networks do this: a state of the generator, and tensors in a dictionary."""

    @staticmethod
    def forward(ctx, x, more):
        ctx.save_for_backward(x)
        y = torch.from_numpy(x.numpy()) * torch.rand(())
        return y * more["scale"]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


def test_a_capture_that_fails_has_drawn_nothing():
    def draw(x):
        return DrawsAndTakesADictionary.apply(x, {"scale": x.detach().exp()})

    x = torch.randn(3, requires_grad=True)
    compiled = funcaot.compile(draw, backend="eager")
    said = pytest.warns(CaptureWarning, match="given one inside of an object")
    for told in (said, contextlib.nullcontext()):
        state = torch.get_rng_state()
        expected, following = draw(x), torch.rand(())
        torch.set_rng_state(state)
        with told:
            found = compiled(x)
        assert_close(found, expected)
        assert torch.equal(torch.rand(()), following)
        assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)))
