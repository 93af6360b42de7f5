"""Turn generated cases into pytest parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from funcaot.testing.check.cases import ROW_NAMES, RowCase, row_cases
from funcaot.testing.composition import Composition, pairs, parse, singles
from funcaot.testing.generator import Case, cases_of, is_slow
from funcaot.testing.records import FunctionInfo

if TYPE_CHECKING:
    import pytest


def parametrize_transforms(
    infos: Iterable[FunctionInfo],
    transforms: Sequence[str] | None = None,
    *,
    depth: int = 1,
    all_samples: bool = True,
    device: str = "cpu",
) -> pytest.MarkDecorator:
    """A decorator that gives a test one ``case`` per Function, transform, sample and dtype.

    The rows of ``check`` are cases too, one for each Function: the gradient against finite
    differences, higher orders in both modes, what a rule must leave alone. Known limitations become
    strict expected failures. A transform that needs a rule which the Function does not have must
    raise a clear error; ``case.run()`` checks that.

    Args:
        infos: What to test, from ``opinfo``.
        transforms: Names such as ``"vmap_of_grad"`` or of rows such as ``"second_order"``; by
            default every one of both tables.
        depth: 2 adds every composition of two transforms.
        all_samples: Every sample and dtype; otherwise the first of each.
        device: Where the tensors are.

    Returns:
        A ``pytest.mark.parametrize`` mark for an argument named ``case``.

    Example:
        >>> import torch
        >>> from funcaot.testing import opinfo, parametrize_transforms
        >>> sine = opinfo(torch.sin, [torch.ones(2, dtype=torch.float64, requires_grad=True)])
        >>> mark = parametrize_transforms([sine], ["vmap_of_grad"])
        >>> [parameter.id for parameter in mark.args[1]]
        ['sin-vmap_of_grad-sample0-float64-cpu']
    """
    import pytest

    described = list(infos)
    rows = None if transforms is None else [name for name in transforms if name in ROW_NAMES]
    chains = None if transforms is None else [n for n in transforms if n not in ROW_NAMES]
    compositions = select(chains, depth)
    cases: list[Case | RowCase] = [
        case
        for info in described
        for case in cases_of(info, compositions, all_samples=all_samples, device=device)
    ]
    cases += row_cases(described, rows, device=device)
    return pytest.mark.parametrize("case", parameters(cases))


def select(transforms: Sequence[str] | None, depth: int) -> list[Composition]:
    """The compositions to generate."""
    if transforms is not None:
        return [parse(name) for name in transforms]
    chosen = [chain for chain in singles() if not is_slow(chain)]
    return [*chosen, *pairs()] if depth > 1 else chosen


def parameters(
    cases: Iterable[Case | RowCase], is_long: Callable[[int, Any], bool] | None = None
) -> list[Any]:
    """The cases as pytest parameters, with their ids and expected failures.

    Args:
        cases: What to test.
        is_long: Given a position and its case, whether that gets the mark ``long``.
    """
    import pytest

    made = []
    for position, case in enumerate(cases):
        is_row = isinstance(case, RowCase)
        limitation = case.info.limitation_for(case.name, "*" if is_row else case.sample)
        marks = []
        # Where a rule is missing, the refusal is what should happen.
        if limitation is not None and (is_row or not case.missing):
            marks.append(pytest.mark.xfail(reason=limitation.reason, strict=limitation.strict))
        if is_long is not None and is_long(position, case):
            marks.append(pytest.mark.long)
        made.append(pytest.param(case, id=case.id, marks=marks))
    return made
