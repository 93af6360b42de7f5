"""Every rule of the table under stacks of transforms, against finite differences and loops."""

import functools

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F

import funcaot
import funcaot.derivatives.special
from funcaot.testing.derivatives import FiniteDifferences
from tests.derivatives.cases import CALLS, UNBATCHED
from tests.derivatives.test_rules import FAST, close, directions

pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce"),
    # Some ops have no batching rule; torch loops over the examples and says so.
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
DIFFERENCES = FiniteDifferences()


def loss_of(function):
    """Curved, so that what arrives at the op moves too."""

    def loss(*values):
        outputs = function(*values)
        weights = torch.linspace(-1.0, 1.3, outputs.numel(), dtype=outputs.dtype)
        weights = weights.reshape(outputs.shape)
        return (weights * outputs.sin()).sum()

    return loss


def gradient(function, primals):
    return torch.func.grad(loss_of(function), argnums=tuple(range(len(primals))))


def by_functions(function, primals, tangents):
    return torch.func.jvp(gradient(function, primals), tuple(primals), tangents)[1]


def by_dual_leaves(function, primals, tangents):
    """Tangents and recorded gradients at one level."""
    inputs = [primal.clone().requires_grad_() for primal in primals]
    with forward_ad.dual_level():
        pairs = zip(inputs, tangents, strict=True)
        duals = [forward_ad.make_dual(primal, tangent) for primal, tangent in pairs]
        found = torch.autograd.grad(
            loss_of(function)(*duals), inputs, create_graph=True, allow_unused=True
        )
        return [None if g is None else forward_ad.unpack_dual(g).tangent for g in found]


def without_a_graph(function, primals, tangents):
    """The same, where nobody will differentiate the gradients."""
    inputs = [primal.clone().requires_grad_() for primal in primals]
    with forward_ad.dual_level():
        pairs = zip(inputs, tangents, strict=True)
        duals = [forward_ad.make_dual(primal, tangent) for primal, tangent in pairs]
        found = torch.autograd.grad(loss_of(function)(*duals), inputs, allow_unused=True)
        return [None if g is None else forward_ad.unpack_dual(g).tangent for g in found]


def one_of_a_batch(function, primals, tangents):
    """Forward over reverse of each example."""
    batches = [torch.stack([0.7 * p, p]) for p in primals]

    def product(*values):
        return torch.func.jvp(gradient(function, primals), values, tangents)[1]

    return [found[1] for found in torch.func.vmap(product, randomness="same")(*batches)]


SECOND = {
    "by_functions": by_functions,
    "by_dual_leaves": by_dual_leaves,
    "without_a_graph": without_a_graph,
    "one_of_a_batch": one_of_a_batch,
}


@functools.cache
def expected(name):
    call = CALLS[name]
    primals = call.primals()
    places, tangents = tuple(range(len(primals))), directions(primals, 3)

    def first(*values):
        with funcaot.install():
            return gradient(call.function, values)(*values)

    return DIFFERENCES.jvp(first, primals, places, tangents)[1]


@pytest.mark.parametrize(("way", "name"), [
    (way, name) for way in SECOND for name in CALLS
    if way != "one_of_a_batch" or name not in UNBATCHED
])  # fmt: skip
def test_forward_over_reverse(way, name):
    call = CALLS[name]
    primals = call.primals()
    with funcaot.install():
        found = SECOND[way](call.function, primals, directions(primals, 3))
    close(found, expected(name), call.tolerance)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CALLS
])  # fmt: skip
def test_forward_over_reverse_compiled(name):
    call = CALLS[name]
    primals = call.primals()
    compiled = funcaot.compile(call.function, backend="eager")
    if name.startswith("unique"):  # Values decide a size inside of a level: eager's error.
        with pytest.raises(NotImplementedError, match="forward AD"):
            by_functions(compiled, primals, directions(primals, 3))
        return
    for _ in range(2):
        found = by_functions(compiled, primals, directions(primals, 3))
        close(found, expected(name), call.tolerance)
    if name.startswith("ctc"):  # needs the values of the lengths, inside of a transform
        return
    whole = funcaot.compile(lambda p, t: by_functions(call.function, p, t), backend="eager")
    for _ in range(2):
        close(whole(primals, directions(primals, 3)), expected(name), call.tolerance)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_batch_of_gradients(name, order):
    """Nothing of a batch but what arrives, as in ``jacrev``."""
    call = CALLS[name]
    primals = call.primals()

    def function(*values):
        return gradient(call.function, values)(*values) if order == 2 else call.function(*values)

    with funcaot.install():
        results, pull = torch.func.vjp(function, *primals)
        alone = not isinstance(results, tuple)
        arriving = [directions([results] if alone else results, seed) for seed in (1, 2)]
        wanted = [pull(one[0] if alone else tuple(one)) for one in arriving]
        batch = tuple(map(torch.stack, zip(*arriving, strict=True)))
        found = torch.func.vmap(pull)(batch[0] if alone else batch)
    for actual, *want in zip(found, *wanted, strict=True):
        torch.testing.assert_close(actual, torch.stack(want))


@pytest.mark.parametrize("name", [name for name in CALLS if name not in UNBATCHED])
def test_gradient_of_a_batch(name):
    """A level that differentiates outside of one that batches."""
    call = CALLS[name]
    primals = call.primals()
    batches = [torch.stack([0.7 * p, p]) for p in primals]

    def total(*values):
        return torch.func.vmap(loss_of(call.function), randomness="same")(*values).sum()

    with funcaot.install():
        found = torch.func.grad(total, argnums=tuple(range(len(primals))))(*batches)
        one = [gradient(call.function, primals)(*[b[i] for b in batches]) for i in range(2)]
    wanted = [torch.stack(parts) for parts in zip(*one, strict=True)]
    for actual, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual, want)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "cholesky"), reason="this torch has no cholesky")
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("upper", [False, True])
def test_the_deprecated_cholesky_moves_as_the_other(upper):
    half = directions([torch.empty(3, 3, dtype=torch.float64)], 1)[0]
    matrix, tangent = half @ half.T + 3 * torch.eye(3), half + half.T

    def all_of(function):
        def run(x):
            return function(x, upper=upper)

        return (
            torch.func.jvp(run, (matrix,), (tangent,))[1],
            torch.func.hessian(loss_of(run))(matrix),
        )

    with funcaot.install():
        found = all_of(torch.cholesky)
    torch.testing.assert_close(found, all_of(torch.linalg.cholesky))


@pytest.mark.parametrize("shape", [(2, 1), (2, 1, 1, 1), (3, 4)])
def test_dropout_pushed_forward_twice_inside_of_a_compiled_function(shape):
    """The inner tangent of its mask is a zero that has no memory, and gets a tangent outside."""
    x = directions([torch.empty(shape, dtype=torch.float64)], 1)[0]

    def run(x):
        def pushed(x):
            return torch.func.jvp(lambda x: F.dropout(x, 0.3) * x, (x,), (x.cos(),))[1]

        return torch.func.jvp(pushed, (x,), (x.sin(),))

    torch.manual_seed(2)
    wanted = run(x)
    torch.manual_seed(2)
    for actual, want in zip(funcaot.compile(run, backend="eager")(x), wanted, strict=True):
        torch.testing.assert_close(actual, want)


@pytest.mark.parametrize("how", ["install", "compiled"])
def test_later_orders_of_a_layer_with_norms(how):
    """Against the same layer with norms that are written out."""
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4), (4,), (4,))
    )

    def written(x):
        centered = x - x.mean(-1, keepdim=True)
        scale = (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (centered * scale * weight + bias).sin() * x

    def layer(x):
        return F.layer_norm(x, (4,), weight, bias).sin() * x

    def orders(function):
        tensor = x.clone().requires_grad_()
        value, found = (function(tensor) * 1.3).sin().sum(), []
        for order in range(4):
            (gradient,) = torch.autograd.grad(value, tensor, create_graph=order < 3)
            found.append(gradient.detach())
            value = (gradient * tensor.detach().cos()).sum()
        return found

    wanted = orders(written)
    if how == "compiled":
        found = orders(funcaot.compile(layer, backend="eager"))
    else:
        with funcaot.install():
            found = orders(layer)
    for actual, want in zip(found, wanted, strict=True):
        scale = 1 + want.abs().max()
        torch.testing.assert_close(actual / scale, want / scale, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_tangents_of_packed_sequences(kind):
    """Against the same layer one sequence at a time."""
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(3, 4).double()
    x, along = directions([torch.empty(5, 2, 3, dtype=torch.float64)] * 2, 7)
    with funcaot.install(), forward_ad.dual_level():
        packed = torch.nn.utils.rnn.pack_padded_sequence(forward_ad.make_dual(x, along), [5, 3])
        output, _ = torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0])
        found = forward_ad.unpack_dual(output).tangent
    for place, length in enumerate((5, 3)):
        one, moved = x[:length, place], along[:length, place]
        wanted = torch.func.jvp(lambda x: layer(x)[0], (one,), (moved,))[1]
        torch.testing.assert_close(found[:length, place], wanted)
        assert not found[length:, place].any()


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_hessians_of_compiled_distances(p):
    """Derivatives of two distances are pushed at once, and one of them is of no batch."""
    y = torch.arange(8.0, dtype=torch.float64).reshape(2, 4) * 0.7

    def distances(x):
        return torch.linalg.vector_norm(x[:, None] - y, p, -1)

    def loss(function):
        return lambda x: function(x).square().sum() + function(x).sin().sum()

    x = directions([y], 4)[0]
    wanted = torch.func.hessian(loss(distances))(x)
    compiled = funcaot.compile(loss(lambda x: torch.cdist(x, y, p=p)), backend="eager")
    for _ in range(2):
        torch.testing.assert_close(torch.func.hessian(compiled)(x), wanted)
        torch.testing.assert_close(torch.func.jacrev(torch.func.grad(compiled))(x), wanted)
