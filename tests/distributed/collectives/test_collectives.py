"""Collectives inside of compiled functions, against the same calls in eager."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

import funcaot
from tests.distributed.ranks import Ranks, RanksFailedError
from tests.hostile import COMPILER


def _reduced(x):
    y = x * 2
    dist.all_reduce(y)
    return y.sin()


def _reduced_argument(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x + 1


def _reduced_in_part(x):
    dist.all_reduce(x[1:])
    return x * 3


def _waited(x):
    y = x * 2
    handle = dist.all_reduce(y, async_op=True)
    z = x.cos()
    handle.wait()
    return y + z, handle.is_completed()


def _several(x):
    tensors = [x, x * 2]
    dist.all_reduce_coalesced(tensors)
    dist.all_reduce(tensors[1], op=dist.ReduceOp.MIN)
    return tensors[0] - tensors[1]


def _complex(x):
    y = torch.complex(x, x * 2)
    dist.all_reduce(y)
    return torch.view_as_real(y)


def _gathered(x):
    out, listed = torch.empty(4, 3), [torch.empty(2, 3) for _ in range(2)]
    dist.all_gather_into_tensor(out, x)
    dist.all_gather(listed, x * 2)
    return out.sin(), listed


def _scattered(x):
    out, from_list = torch.empty(1, 3), torch.empty(3)
    dist.reduce_scatter_tensor(out, x)
    dist.reduce_scatter(from_list, [x[0].contiguous(), x[1].contiguous()])
    part = torch.empty(3)
    dist.scatter(part, [x[0] * 2, x[1] * 3] if dist.get_rank() == 1 else None, src=1)
    return out, from_list, part


def _sent(x):
    dist.broadcast(x, 1)
    y = x + dist.get_rank()
    dist.reduce(y, 0)
    pieces = [torch.zeros(2, 3) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(x * 2, pieces, dst=0)
    return y if dist.get_rank() == 0 else x, pieces or []


def _to_all(x):
    out = torch.empty(2, 3)
    dist.all_to_all_single(out, x)
    uneven = torch.empty(2, 3)
    dist.all_to_all_single(uneven, x, [1, 1], [1, 1])
    return out, uneven


def _functional(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + functional.broadcast(
        x, 0, dist.group.WORLD
    )


def _used_on_one(x):
    """Each rank takes part, though only one reads the result."""
    y = x * 2
    dist.all_reduce(y)
    return y if dist.get_rank() == 0 else x


def _in_no_grad(x):
    with torch.no_grad():
        mean = x.mean()
        dist.all_reduce(mean)
    return (x - mean / 2).sum()


PLAIN = (
    _reduced,
    _reduced_argument,
    _reduced_in_part,
    _waited,
    _several,
    _complex,
    _gathered,
    _scattered,
    _sent,
    _to_all,
    _functional,
    _used_on_one,
    _in_no_grad,
)


def _of(function):
    return lambda message: f"{function.__name__}: {message}"


def _call_all(backend) -> None:
    for function in PLAIN:
        compiled = funcaot.compile(function, backend=backend)
        for step in range(3):
            made = torch.Generator().manual_seed(step + 7 * dist.get_rank())
            x = torch.randn(2, 3, generator=made)
            given = x.clone()
            expected, found = function(x), compiled(given)
            torch.testing.assert_close(found, expected, msg=_of(function))
            torch.testing.assert_close(given, x)
        assert len(compiled.entries) == 1, function.__name__


def _call_all_hostile() -> None:
    _call_all(COMPILER)


def test_as_in_eager(ranks: Ranks):
    ranks.run(_call_all_hostile)


@pytest.mark.slow
@pytest.mark.long
def test_as_in_eager_on_inductor(ranks: Ranks):
    ranks.run(_call_all, "inductor", deadline=400)


def _with_reduced(x, w):
    return (differentiable.all_reduce(x * w) ** 2).sum()


def _with_gathered(x, w):
    return sum((piece * w).sin().sum() for piece in differentiable.all_gather(x * w))


def _with_broadcast(x, w):
    return (differentiable.broadcast(x * w, 0) ** 3).sum()


def _with_functional(x, w):
    whole = functional.all_gather_single(x * w, 0, dist.group.WORLD)
    return (functional.reduce_scatter_single(whole.sin(), "sum", 0, dist.group.WORLD) ** 2).sum()


def _derivatives(function, step):
    made = torch.Generator().manual_seed(step + 7 * dist.get_rank())
    x, w = (torch.randn(2, 3, generator=made, requires_grad=True) for _ in range(2))
    value = function(x, w)
    first = torch.autograd.grad(value, (x, w), create_graph=True)
    second = torch.autograd.grad(sum(each.pow(2).sum() for each in first), (x, w))
    return value, first, second


def _differentiate_all() -> None:
    import warnings

    warnings.simplefilter("ignore", FutureWarning)
    for function in (_with_reduced, _with_gathered, _with_broadcast, _with_functional):
        compiled = funcaot.compile(function, backend=COMPILER)
        for step in range(3):
            expected, found = _derivatives(function, step), _derivatives(compiled, step)
            torch.testing.assert_close(found, expected, msg=_of(function))


def test_derivatives_of_both_orders(ranks: Ranks):
    ranks.run(_differentiate_all)


class _Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total += x.sum(0)
        dist.all_reduce(self.total)
        return x - self.total


def _call_with_buffers() -> None:
    plain, module = _Counter(), _Counter()
    compiled = funcaot.compile(module, backend=COMPILER)
    for step in range(3):
        x = torch.full((2, 3), float(step + dist.get_rank()))
        torch.testing.assert_close(compiled(x), plain(x))
        torch.testing.assert_close(module.total, plain.total)


def test_a_buffer_is_reduced(ranks: Ranks):
    ranks.run(_call_with_buffers)


def _call_in_groups() -> None:
    """A group is an argument, and what a name means may change."""
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]

    @funcaot.compile(backend=COMPILER)
    def summed(x, group):
        y = x * 2
        dist.all_reduce(y, group=group)
        return y

    for _ in range(2):
        assert summed(torch.ones(2), None).tolist() == [4.0, 4.0]
        assert summed(torch.ones(2), alone).tolist() == [2.0, 2.0]
    assert len(summed.entries) == 2


def test_another_group_is_another_program(ranks: Ranks):
    ranks.run(_call_in_groups)


def _call_in_another_world() -> None:
    @funcaot.compile(backend=COMPILER)
    def gathered(x):
        out = torch.empty(dist.get_world_size(), 2)
        dist.all_gather_into_tensor(out, x)
        return out

    for _ in range(2):
        assert gathered(torch.ones(2)).shape == (2, 2)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(2):
        assert gathered(torch.ones(2)).shape == (1, 2)
    assert len(gathered.entries) == 2


def test_another_world_is_another_program(ranks: Ranks):
    ranks.run(_call_in_another_world)


def _refused(name: str) -> None:
    calls = {
        "barrier": lambda x: dist.barrier() or x,
        "send": lambda x: dist.send(x, 1 - dist.get_rank()) or x,
        "item": lambda x: x * 2 if differentiable.all_reduce(x).sum() > 0 else x,
        "count": lambda x: x[: int(differentiable.all_reduce(x).sum().long())],
    }
    with pytest.raises(funcaot.errors.UnsupportedError) as error:
        funcaot.compile(calls[name], backend=COMPILER)(torch.ones(2))
    expected = (
        "other ranks contribute" if name in ("item", "count") else f"torch.distributed's {name}"
    )
    assert expected in str(error.value), str(error.value)


@pytest.mark.parametrize("name", ["barrier", "send", "item", "count"])
def test_refused_by_name(ranks: Ranks, name):
    ranks.run(_refused, name)


def _with_other_sizes(late: float) -> list[int]:
    """Each rank's batches have sizes of their own, and one takes long to compile."""
    import time

    def slow(module, inputs):
        if dist.get_rank() == 1:
            time.sleep(late)
        return module

    weight = torch.ones(3, requires_grad=True)

    @funcaot.compile(backend=slow)
    def loss(x):
        value = (x @ weight).square().mean()
        whole = differentiable.all_reduce(value)
        return whole / 2

    import warnings

    warnings.simplefilter("ignore", FutureWarning)
    seen = []
    for size in ((4, 5, 6, 6, 4), (4, 4, 4, 9, 1))[dist.get_rank()]:
        loss(torch.ones(size, 3)).backward()
        seen.append(weight.grad.sum().item())
    return seen


def test_ranks_with_other_sizes_or_that_are_late_wait_for_each_other(ranks: Ranks):
    first, second = ranks.run(_with_other_sizes, 1.0)
    assert first == pytest.approx(second)
    assert first == pytest.approx([18.0 * (step + 1) for step in range(5)])


def _fails_while_compiling() -> None:
    def compiler(module, inputs):
        if dist.get_rank() == 1:
            raise ValueError("no compiler here")
        return module

    @funcaot.compile(backend=compiler)
    def summed(x):
        y = x * 2
        dist.all_reduce(y)
        return y

    summed(torch.ones(2))


def test_an_error_on_one_rank_ends_all(ranks: Ranks):
    with pytest.raises(RanksFailedError, match=r"rank 1\n(?s:.*)no compiler here"):
        ranks.run(_fails_while_compiling)
