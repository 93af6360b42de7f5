"""Jagged batches of other lengths and numbers of rows, and ``DTensor`` of other sizes."""

import random

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing import assert_close

import funcaot
from tests.aot.subclasses import test_distributed_tensors as distributed
from tests.aot.subclasses.jagged import test_jagged
from tests.aot.subclasses.kinds import made, run, same
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
F = torch.nn.functional
BATCHES = 20


def batch(seed, *, lengths=False, width=4):
    """A jagged tensor of random lengths, that knows the least and the largest or doesn't."""
    draw = random.Random(seed)
    rows = [draw.randint(1, 8) for _ in range(draw.randint(2, 7))]
    rows[0] += 2
    offsets = torch.tensor([0, *rows]).cumsum(0)
    known = {"min_seqlen": min(rows), "max_seqlen": max(rows)} if lengths else {}
    values = made(seed, sum(rows), width, grad=False)
    return torch.nested.nested_tensor_from_jagged(values, offsets, **known).requires_grad_()


def beside(x, seed):
    """Another one with the same offsets."""
    values = made(seed, *x.values().shape, grad=False)
    return torch.nested.nested_tensor_from_jagged(values, x.offsets()).requires_grad_()


def labelled(x, labels):
    return x.to_padded_tensor(0.0).sum((1, 2)) * labels


class Sine(torch.autograd.Function):
    """A Function of the user's."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos() * 2


class SineByContext(Sine):
    """The same in the older style."""

    setup_context = torch.autograd.Function.setup_context

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()


# The function, what it is called with, whether torch has a second derivative, known lengths.
PROGRAMS = {
    "pointwise": (lambda x: (x.sin() * 2).exp(), lambda x, s: (x,), True, False),
    "linear": (
        lambda x, w, b: F.linear(x, w, b).relu(),
        lambda x, s: (x, made(7, 5, 4), made(8, 5)),
        True,
        False,
    ),
    "product": (lambda x, w: (x @ w).tanh(), lambda x, s: (x, made(7, 4, 5)), False, False),
    "product over rows": (
        lambda x, y: x.transpose(1, 2) @ y,
        lambda x, s: (x, beside(x, s)),
        False,
        False,
    ),
    "two of one shape": (lambda x, y: x * y.sin(), lambda x, s: (x, beside(x, s)), True, False),
    "values": (lambda x: (x * 2).values().sum(0), lambda x, s: (x,), True, False),
    "softmax": (lambda x: torch.softmax(x, -1), lambda x, s: (x,), True, True),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), lambda x, s: (x,), False, False),
    "heads": (test_jagged.heads, lambda x, s: (x,), True, False),
    "padded": (lambda x: x.to_padded_tensor(0.0) * 2, lambda x, s: (x,), False, True),
    "made inside": (
        test_jagged.from_jagged,
        lambda x, s: (x.values().detach().requires_grad_(), x.offsets()),
        True,
        False,
    ),
    "a label for each row": (
        labelled,
        lambda x, s: (x, made(s, x.shape[0], grad=False)),
        False,
        False,
    ),
    "the number of rows": (lambda x: x * x.shape[0], lambda x, s: (x,), True, False),
}


def compare(compiled, function, arguments, *, twice):
    both = [
        test_jagged.derivatives(f, lambda: arguments, once=not twice) for f in (compiled, function)
    ]
    for found, wanted in zip(*both, strict=True):
        test_jagged.alike(found, wanted)
        if wanted.is_nested:
            assert found.shape[0] == wanted.shape[0]
            assert found.shape[2:] == wanted.shape[2:]
            assert found._max_seqlen_tensor is None or found._max_seqlen == wanted._max_seqlen
            offsets = [each.offsets() for each in arguments if each.is_nested]
            assert [found.offsets() is each for each in offsets] == [
                wanted.offsets() is each for each in offsets
            ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_program_for_all_batches(program):
    function, make, twice, lengths = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(BATCHES):
        arguments = make(batch(seed, lengths=lengths), seed)
        compare(compiled, function, arguments, twice=twice)
    assert len(compiled.entries) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["pointwise", "linear", "product", "two of one shape", "softmax"]
)
def test_on_the_default_backend(program):
    function, make, twice, lengths = PROGRAMS[program]
    compiled = funcaot.compile(function)
    for seed in range(BATCHES):
        arguments = make(batch(seed, lengths=lengths), seed)
        compare(compiled, function, arguments, twice=twice)
    assert len(compiled.entries) == 2


def test_functions_of_the_users():
    def function(x):
        return SineByContext.apply(Sine.apply(x * 2))

    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(4):
        compare(compiled, function, (batch(seed),), twice=True)
    assert len(compiled.entries) == 2


def test_results_go_together_with_what_they_were_made_of():
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER)
    for seed in range(4):
        x = batch(seed)
        found = compiled(x)
        assert found.shape == x.shape
        test_jagged.alike(found + x, x.sin() + x)
        with pytest.raises(RuntimeError, match=r"shape|size"):
            _ = found + batch(seed)


def test_gradients_of_another_raggedness_are_refused_as_in_eager():
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER)
    for seed in range(4):
        x = batch(seed)
        with pytest.raises(RuntimeError, match="Mismatch in shape"):
            torch.autograd.grad(compiled(x), x, torch.ones_like(batch(seed + 1)))


def test_offsets_are_one_tensor_or_two():
    """Where two batches share offsets is another program than where each has its own."""
    compiled = funcaot.compile(lambda x, y: (x.sin(), y.cos()), backend=COMPILER)
    for seed in range(6):
        x = batch(seed)
        for y in (beside(x, seed), batch(seed + 1)):
            found = compiled(x, y)
            assert [each.offsets() is x.offsets() for each in found] == [
                True,
                y.offsets() is x.offsets(),
            ]
            for one, other in zip(found, (x.sin(), y.cos()), strict=True):
                test_jagged.alike(one, other)
    assert len(compiled.entries) == 4


def test_a_derivative_that_reads_lengths_closes_them():
    """The gradient of one row reads the offsets' values, as the row itself does."""

    def first_row(x):
        return x[0].sin()

    compiled = funcaot.compile(first_row, backend=COMPILER)
    for seed in range(3):
        compare(compiled, first_row, (batch(seed),), twice=False)
    assert len(compiled.entries) == 3
    assert "reads" in str(compiled.size_refusal(compiled.entries[1].made_for))
    assert "reads" in str(funcaot.report(compiled))


@pytest.mark.parametrize("dynamic", [None, False])
def test_such_a_derivative_may_be_asked_for_later(dynamic):
    function, make, _, _ = PROGRAMS["linear"]
    compiled = funcaot.compile(function, backend=COMPILER, dynamic=dynamic)
    for seed in range(5):
        compare(compiled, function, make(batch(seed), seed), twice=seed > 1)
    assert len(compiled.entries) == (2 if dynamic is None else 5)


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", distributed.PROGRAMS)
def test_distributed_tensors(program, order, mesh):
    body, make = distributed.PROGRAMS[program]
    on = distributed.make_on(mesh)

    def function(*arguments):
        return body(mesh, *arguments)

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (4, 5, 7, 2, 9, 12, 4, 8):

        def sized(seed, *shape, n=n, **given):
            return on(seed, *[n if size == 4 else size for size in shape], **given)

        def arguments(n=n, sized=sized):
            plain = program == "from and to local"
            return (made(0, n, 3),) if plain else make(sized)

        found = run(compiled, arguments, order=order)
        same(found, run(function, arguments, order=order))
        for one in found:
            if isinstance(one, DTensor):
                assert all(isinstance(size, int) for size in one._spec.tensor_meta.shape)
    assert len(compiled.entries) == 2


@pytest.mark.parametrize("placed", [Replicate(), Shard(0)], ids=str)
def test_what_comes_out_can_go_on(placed, mesh):
    on = distributed.make_on(mesh)
    compiled = funcaot.compile(lambda x: x.sin(), backend=COMPILER)
    for n in (4, 5, 7, 9):
        x = on(0, n, 3, placed=placed, grad=False)
        found = compiled(compiled(x))
        same(found, x.sin().sin())
        assert_close((found + x).full_tensor(), (x.sin().sin() + x).full_tensor())
    assert len(compiled.entries) == 2


def test_a_backward_whose_offsets_nobody_reads():
    """Of two results, one of which is jagged, the other one is differentiated."""
    weight = made(0, 4, 4)

    def function(x):
        y = F.linear(x, weight).sigmoid()
        return y.values().square().mean(), y

    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(3):
        found = []
        for each in (compiled, function):
            loss, y = each(batch(seed).detach())
            found.append((loss, y.values(), torch.autograd.grad(loss, weight)[0]))
        assert_close(*found, rtol=1e-4, atol=1e-5)
    assert len(compiled.entries) == 2
