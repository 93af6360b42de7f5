"""Turn generated cases into pytest parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

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

    Known limitations become strict expected failures. A transform that needs a rule which the
    Function does not have must raise a clear error; ``case.run()`` checks that.

    Args:
        infos: What to test, from ``opinfo``.
        transforms: Names such as ``"vmap_of_grad"``; by default every one of the table.
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

    compositions = select(transforms, depth)
    cases = [
        case
        for info in infos
        for case in cases_of(info, compositions, all_samples=all_samples, device=device)
    ]
    return pytest.mark.parametrize("case", parameters(cases))


def select(transforms: Sequence[str] | None, depth: int) -> list[Composition]:
    """The compositions to generate."""
    if transforms is not None:
        return [parse(name) for name in transforms]
    chosen = [chain for chain in singles() if not is_slow(chain)]
    return [*chosen, *pairs()] if depth > 1 else chosen


def parameters(
    cases: Iterable[Case], is_long: Callable[[int, Case], bool] | None = None
) -> list[Any]:
    """The cases as pytest parameters, with their ids and expected failures.

    Args:
        cases: What to test.
        is_long: Given a position and its case, whether that gets the mark ``long``.
    """
    import pytest

    made = []
    for position, case in enumerate(cases):
        limitation = case.info.limitation_for(case.composition.name, case.sample)
        marks = []
        # Where a rule is missing, the refusal is what should happen.
        if limitation is not None and not case.missing:
            marks.append(pytest.mark.xfail(reason=limitation.reason, strict=limitation.strict))
        if is_long is not None and is_long(position, case):
            marks.append(pytest.mark.long)
        made.append(pytest.param(case, id=case.id, marks=marks))
    return made
