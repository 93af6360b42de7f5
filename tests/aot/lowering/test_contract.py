"""What an executable returns: objects, memory and strides are the capture's on every backend."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot import config
from funcaot.aot.graph.layout import Layout, restrided
from funcaot.aot.lowering import contract
from funcaot.errors import GraphError
from tests.aot.programs.write_after import assert_same, check_writes_after, observed
from tests.hostile import COMPILER


def two_clones(x):
    h = x.sin()
    return h.clone(), h.clone()


def equal_results(x):
    h = x.sin()
    return h + torch.zeros_like(h), h * torch.ones_like(h), torch.cat([h]), h


def copies_of_an_input(x):
    padded = torch.nn.functional.pad(x, (0, 0))
    return x + torch.zeros_like(x), x * 1, torch.cat([x]), x.clone(), x.view(3, 2) + 0, padded


def clone_without_gradient(x):
    h = x.sin()
    with torch.no_grad():
        log = h.clone()
    return h.clone(), log


def zeros_without_gradient(x):
    with torch.no_grad():
        return x + torch.zeros_like(x), x.clone()


def part_and_whole(x):
    h = x.sin()
    return h, torch.cat([h, x.cos()]), h.t().clone()


def views_and_clones(x):
    h = x.exp()
    return h.t(), h, h.clone().t(), x.detach().clone(), x


def kept_for_the_backward(x):
    h = x.exp()
    return h.clone(), h.square(), (h + torch.zeros_like(h)).view(-1)


def writes_and_returns_clones(x):
    y = x * 2
    y[0] = 3
    z = y.clone()
    y.mul_(2)
    return y, z, y.clone()


PROGRAMS = [
    two_clones,
    equal_results,
    copies_of_an_input,
    clone_without_gradient,
    zeros_without_gradient,
    part_and_whole,
    views_and_clones,
    kept_for_the_backward,
    writes_and_returns_clones,
]


def arguments(requires_grad):
    x = torch.arange(6.0).view(2, 3).div(7).requires_grad_(requires_grad)
    return (x,)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_writes_reach_what_they_reach_in_eager(program, requires_grad, backend):
    check_writes_after(program, lambda: arguments(requires_grad), backend=backend)


def test_a_view_of_memory_that_two_inputs_share_keeps_its_gradient():
    def f(a, b):
        a.mul_(2)
        return a + b

    compiled = funcaot.compile(f)
    for _ in range(3):
        found = []
        for function in (f, compiled):
            x = torch.arange(6.0, requires_grad=True)
            base = x * 1
            y = function(base[:4], base[1:5])
            found.append(torch.autograd.grad(y.sum() + base.sum(), x)[0])
        assert torch.equal(found[1], found[0])


class TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x + y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        result = grad * x
        return result, result.detach()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_gradient_and_its_detached_self_are_two_objects(backend):
    def f(x, y):
        return TwiceTheGradient.apply(x, y)

    compiled = funcaot.compile(f, backend=backend)
    for _ in range(3):
        found = []
        for function in (f, compiled):
            x, y = (torch.tensor([k], requires_grad=True) for k in (2.0, 5.0))
            gx, gy = torch.autograd.grad(function(x, y).sum(), (x, y), create_graph=True)
            assert gx is not gy
            assert not gy.requires_grad
            found.append(torch.autograd.grad((gx * gx).sum() + x.sum(), x)[0])
        assert torch.equal(found[1], found[0])


class CloneOfWhatCame(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()


def test_a_gradient_that_is_a_clone_does_not_lie_in_the_tangent():
    compiled = funcaot.compile(lambda x: CloneOfWhatCame.apply(x))
    for _ in range(3):
        x, tangent = torch.ones(3, requires_grad=True), torch.ones(3)
        (gradient,) = torch.autograd.grad(compiled(x), x, tangent)
        gradient.mul_(5)
        assert torch.equal(tangent, torch.ones(3))


STRIDED = {
    "cat of one": lambda x, y: torch.cat([x.t()]),
    "lerp": lambda x, y: torch.lerp(x, y.t(), 0.5),
    "put": lambda x, y: x.t().put(torch.tensor([0]), torch.ones(1)),
    "view of lerp": lambda x, y: torch.lerp(x, y.t(), 0.5).t(),
    "strided lerp": lambda x, y: torch.lerp(x, y.t(), 0.5).as_strided((5,), (2,), 1) + 0,
    "flat lerp": lambda x, y: torch.lerp(x, y.t(), 0.5).view(-1) + 0,
    "one row": lambda x, y: (x[:1].t() + 1, x.t()[:, :1].clone(), x.sum(0, keepdim=True)),
    "none": lambda x, y: (x[:0].t() + 1, x.t()[:0].clone()),
    "bits": lambda x, y: torch.lerp(x, y.t(), 0.5).view(torch.int32) + 0,
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_are_those_of_the_capture(name):
    function = STRIDED[name]
    compiled = funcaot.compile(function)
    x, y = torch.rand(4, 3), torch.rand(3, 4)
    for _ in range(3):
        _, expected = observed(function, (x, y), (), None)
        _, actual = observed(compiled, (x, y), (), None)
        assert_same(actual, expected, name)


def test_open_sizes_are_examined_for_each_size():
    def f(x):
        h = x.sin()
        return h.clone(), h.clone(), torch.lerp(x, x + 1, 0.5)

    compiled = funcaot.compile(f, dynamic=True)
    for count in (3, 5, 4, 3, 5, 7):
        x = torch.rand(count, 2).t()
        first, second, last = compiled(x)
        first.zero_()
        assert_close(second, x.sin())
        assert last.stride() == torch.lerp(x, x + 1, 0.5).stride()


# Backends that use every freedom, and some that nobody gave them.


def merged(graph, inputs):
    """Returns one object for results of equal value."""

    def run(*operands):
        made = list(graph(*operands))
        for index, value in enumerate(made):
            for other in (*operands, *made[:index]):
                if isinstance(other, torch.Tensor) and torch.equal(value, other):
                    made[index] = other
                    break
        return made

    return run


def in_own_memory(graph, inputs):
    """Keeps its results and returns them again."""
    kept = []

    def run(*operands):
        made = graph(*operands)
        if not kept:
            kept.extend(value.clone() for value in made)
        for mine, value in zip(kept, made, strict=True):
            mine.copy_(value)
        return kept

    return run


def in_one_memory(graph, inputs):
    """Lays all results side by side."""

    def run(*operands):
        made = graph(*operands)
        flat = torch.cat([value.reshape(-1) for value in made])
        parts = flat.split([value.numel() for value in made])
        return [part.view(value.shape) for part, value in zip(parts, made, strict=True)]

    return run


def otherwise_each_time(graph, inputs):
    """Changes its mind about objects, memory and strides."""
    count = [0]
    ways = [graph, merged(graph, inputs), in_own_memory(graph, inputs), backwards(graph, inputs)]

    def run(*operands):
        count[0] += 1
        return ways[count[0] % len(ways)](*operands)

    return run


def backwards(graph, inputs):
    """Returns results with the strides the other way round."""

    def run(*operands):
        return [
            value.t().contiguous().t() if value.dim() == 2 else value for value in graph(*operands)
        ]

    return run


BACKENDS = [merged, in_own_memory, in_one_memory, otherwise_each_time, backwards]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_backend(program, requires_grad, backend):
    check_writes_after(program, lambda: arguments(requires_grad), backend=backend)


def writes_to_its_input(graph, inputs):
    def run(*operands):
        made = graph(*operands)
        operands[0].add_(1)
        return made

    return run


def test_a_backend_that_changes_an_operand_is_named():
    compiled = funcaot.compile(lambda x: x * 2, backend=writes_to_its_input)
    with pytest.raises(GraphError, match="changed its operand 0"):
        compiled(torch.ones(3))


def executables(compiled):
    (entry,) = compiled.entries
    return [entry.functions.plain.program.lowered.trusting]


def test_what_needs_no_mending_costs_nothing():
    with config.patch(check_aliases=False):
        clean, mended = funcaot.compile(torch.sin), funcaot.compile(two_clones)
        for compiled in (clean, mended):
            compiled(torch.ones(2, 3))
    (one,) = executables(clean)
    assert contract.settled(one) is one._run
    (other,) = executables(mended)
    assert contract.settled(other) not in (other, other._run)


WRONG = {
    "one object": lambda x: [x.sin()] * 2,
    "one memory": lambda x: (lambda value: (value, value.detach()))(x.sin()),
    "an input": lambda x: (x.sin(), x),
    "a view of an input": lambda x: (x.sin(), x.view(-1).view(2, 3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_proof_names_what_is_not_as_planned(name):
    compiled = funcaot.compile(two_clones, backend="eager")
    x = torch.ones(2, 3)
    compiled(x)
    (one,) = executables(compiled)
    with pytest.raises(GraphError, match="returns as 1 "):
        one._contract.check([x], WRONG[name](x))
    one._contract.check([x], (x.sin(), x.sin()))
    # Eager's own ops have eager's strides, whatever the capture says.
    one._contract.check([x], (x.sin(), x.sin().t().contiguous().t().detach()))


def test_a_result_of_another_dtype_is_refused():
    def halves(module, examples):
        return lambda *operands: [made.half() for made in module(*operands)]

    with pytest.raises(GraphError, match=r"is torch.float16, and torch.float32 in the captured"):
        funcaot.compile(torch.sin, backend=halves)(torch.ones(2))


def test_a_leaf_that_requires_grad_is_none_for_the_caller():
    def leaves(module, examples):
        return lambda *operands: [made.requires_grad_() for made in module(*operands)]

    compiled = funcaot.compile(torch.sin, backend=leaves)
    for _ in range(3):
        with torch.no_grad():
            assert not compiled(torch.ones(2, requires_grad=True)).requires_grad


def test_an_empty_result_begins_where_eagers_does():
    def elsewhere(module, examples):
        return lambda *operands: [
            torch.empty(9).as_strided(made.shape, made.stride(), 3) for made in module(*operands)
        ]

    compiled = funcaot.compile(lambda x: x[1:].sin(), backend=elsewhere)
    for _ in range(3):
        assert compiled(torch.ones(1, 2)).storage_offset() == 0


ONE_WIDE = {
    "by a number": lambda x: x * 1,
    "by itself": lambda x: x * x,
    "by ones": lambda x: x / torch.ones_like(x),
    "to the power of 1": lambda x: x**1,
    "a sine": torch.sin,
    "a clone": torch.clone,
    "cat": lambda x: torch.cat([x]),
    "a mask": lambda x: torch.where(x > 0, x, -x),
    "padded": lambda x: torch.nn.functional.pad(x, (0, 0)),
    "a softmax": lambda x: x.softmax(0),
    "a sum": lambda x: x.sum(0, keepdim=True),
    "a product": lambda x: x @ x.mT,
    "by index": lambda x: x[torch.tensor([0])],
}


def reshapes_a_view(x):
    y = x * 1
    view = y.view_as(y).unsqueeze_(0)
    y.transpose_(0, -1)
    other = x.view_as(x)
    other.unsqueeze_(0)
    x.transpose_(0, -1)
    return view, other, x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("strides", [(1, 4), (1, 1), (7, 2), (4, 1)], ids=str)
def test_strides_of_single_elements_are_eagers(strides, backend):
    def function(x, y):
        return [f(z) for f in ONE_WIDE.values() for z in (x, y)]

    x, y = (torch.randn(40).as_strided(shape, strides) for shape in ((4, 1), (1, 4)))
    expected = [made.stride() for made in function(x, y)]
    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        assert [made.stride() for made in compiled(x, y)] == expected


@pytest.mark.parametrize("grad", [True, False])
def test_so_are_those_of_a_view_whose_base_is_transposed(grad):
    def make():
        return torch.randn(4).as_strided((4, 1), (1, 4))

    expected = [made.stride() for made in reshapes_a_view(make())]
    compiled = funcaot.compile(reshapes_a_view)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            assert [made.stride() for made in compiled(make())] == expected


@pytest.mark.parametrize(
    "layout",
    [
        Layout((3, 4), (0, 0)),
        Layout((3, 4), (1, 0)),
        Layout((3, 4), (0, 1)),
        Layout((3, 4), (1, 1)),
        Layout((2, 3, 4), (0, 2, 1)),
        Layout((3, 4), (1, 3)),
        Layout((0, 4), (0, 0)),
        Layout((1, 4), (7, 0)),
    ],
    ids=str,
)
def test_a_copy_with_any_strides(layout):
    memory = torch.randn(30)
    operand = memory.as_strided(layout.shape, layout.stride)
    for given in (operand, operand.contiguous()):
        copy = restrided(given, layout)
        assert copy.stride() == layout.stride
        assert_close(copy, operand, rtol=0, atol=0)
        assert copy.untyped_storage()._cdata != given.untyped_storage()._cdata
        assert not copy._is_view()


@pytest.mark.parametrize("backend", [COMPILER, "inductor"], ids=["hostile", "inductor"])
def test_a_gradient_that_is_the_tangent_of_a_sum_expanded(backend):
    compiled = funcaot.compile(lambda x: x.sum().flip(0), backend=backend)
    x = torch.randn(3, 4, requires_grad=True)
    tangent = torch.tensor(2.0)
    (ours,) = torch.autograd.grad(compiled(x), x, tangent)
    (expected,) = torch.autograd.grad(x.sum().flip(0), x, tangent)
    assert ours.stride() == expected.stride()
    assert_close(ours, expected)
    tangent.zero_()
    assert_close(ours, expected)


def test_a_result_without_elements_is_an_object_of_its_own():
    compiled = funcaot.compile(lambda x: x + torch.zeros(1, 3))
    x = torch.randn(0, 4, 3)
    for _ in range(2):
        y = compiled(x)
        assert y is not x
        assert not y._is_view()
