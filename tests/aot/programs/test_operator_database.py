"""Each operator of torch's database as a program: itself, in place and with ``out=``, twice."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # Many operators warn.
]

PARTS = 24
# What they return is whatever lies in memory.
UNINITIALIZED = ("empty", "new_empty")
WRONG_IN_EAGER = {
    # Of one dimension, it writes something else to out= than it returns.
    ("fft.ihfft2", "out"),
    ("fft.ihfftn", "out"),
    # It gives what it writes to another size, which the operator's own check refuses.
    ("addbmm", "in place"),
}


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def copied(values: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(copy, values)


def samples(op: Any) -> list[Any]:
    """The first one, and one of those that follow."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        given = op.sample_inputs_func(op, "cpu", torch.float64, op.supports_autograd)
        found = list(itertools.islice(given, 40))
    return [found[index] for index in sorted({0, len(found) // 2})] if found else []


def programs(op: Any, sample: Any) -> Iterator[tuple[str, int, Callable[..., Any]]]:
    """Ways of calling it, with the order to which each is differentiated."""
    yield "op", 2, op
    in_place = op.get_inplace() if op.inplace_variant else None
    if in_place is not None:

        def written(x: Any, *args: Any, **kwargs: Any) -> Any:
            target = x.clone()
            in_place(target, *args, **kwargs)
            return target

        yield "in place", 1, written
    if not op.supports_out:
        return
    args, kwargs = copied(((sample.input, *sample.args), sample.kwargs))
    result = op(*args, **kwargs)
    if isinstance(result, torch.Tensor):

        def into(*args: Any, **kwargs: Any) -> Any:
            out = torch.full(result.shape, 7, dtype=result.dtype)
            with torch.no_grad():
                op(*args, **kwargs, out=out)
            return out

        yield "out", 0, into


def outcome(call: Callable[..., Any], sample: Any, order: int) -> Any:
    """Results and derivatives; an exception where it raises one."""
    args, kwargs = copied(((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    try:
        results = tensors(call(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - errors are compared
        return error
    found = [results]
    leaves = [leaf for leaf in tensors((args, kwargs)) if leaf.requires_grad]
    for level in range(order):
        sources = [value for value in found[-1] if value is not None and value.requires_grad]
        if not sources or not leaves:
            break
        torch.manual_seed(level)
        weights = [torch.randn(value.shape, dtype=value.dtype) for value in sources]
        create = level + 1 < order
        try:
            gradients = torch.autograd.grad(
                sources, leaves, weights, allow_unused=True, create_graph=create
            )
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, UnsupportedError):
                raise
            break  # Eager has no derivative of some, for which funcaot brings one.
        found.append(list(gradients))
    return found


def same(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
    if mine is None or theirs is None:
        present = mine if mine is not None else theirs
        assert present is None or not present.any()
        return
    assert mine.dtype == theirs.dtype
    if mine.layout is torch.strided and mine.is_conj() == theirs.is_conj():
        torch.testing.assert_close(
            mine.detach(), theirs.detach(), rtol=1e-6, atol=1e-8, equal_nan=True
        )


def compiled_of(program: Callable[..., Any]) -> Callable[..., Any]:
    """It compiled, through a function of its own."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return program(*args, **kwargs)

    return funcaot.compile(called, backend=COMPILER)


def check(op: Any) -> None:
    """Compare an operator with its compiled self; what is refused by name is left out."""
    for sample in samples(op):
        for way, order, program in programs(op, sample):
            if (op.name, way) in WRONG_IN_EAGER:
                continue
            compiled = compiled_of(program)
            for _ in range(2):
                wanted, found = outcome(program, sample, order), outcome(compiled, sample, order)
                if isinstance(found, UnsupportedError):
                    break
                assert isinstance(found, Exception) == isinstance(wanted, Exception), found
                if isinstance(wanted, Exception):
                    break
                for mine, theirs in zip(found, wanted, strict=False):
                    assert len(mine) == len(theirs)
                    for pair in zip(mine, theirs, strict=True):
                        same(*pair)


@pytest.mark.parametrize("part", range(PARTS))
def test_operators(part):
    # Not when tests are collected: it takes seconds, and changes settings of the process.
    from torch.testing._internal.common_methods_invocations import op_db

    wrong = []
    with funcaot.config.patch(fallback_random=True):
        for op in op_db[part::PARTS]:
            if op.name.startswith(UNINITIALIZED) or torch.float64 not in op.dtypes:
                continue  # Of the former, the result is whatever lies in memory.
            try:
                check(op)
            except AssertionError as error:
                wrong.append(f"{op.name} {op.variant_test_name}: {error}")
    assert not wrong, "\n".join(wrong)
