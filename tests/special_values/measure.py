"""Compile many calls as one function, and say which of their results aren't eager's."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.special_values.compare import RAISES, differences
from tests.special_values.records import APART, CONTIGUOUS, FEW, FLOAT32, Case, Group, operands
from tests.special_values.table import GROUPS

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
VALUES, GRADIENTS = "values", "gradients"
# Marks what eager computes too, for the same numbers in memory with gaps: one by one.
AS_STRIDED = " (as eager, strided)"

# How many calls are compiled together. Windows of images become long code, if they are fused.
_AT_ONCE, _IMAGES_AT_ONCE = 40, 8


@dataclass(frozen=True)
class Setting:
    """What a case is measured for, besides its call."""

    dtype: str
    layout: str
    what: str

    def __str__(self) -> str:
        return f"{self.dtype}, {self.layout}, {self.what}"


Found = dict[str, dict[str, list[str]]]


def settings_of(group: Group) -> Iterator[tuple[Setting, list[Case]]]:
    """All settings of a group, each with its cases: layouts and gradients for one dtype."""
    for dtype in dict.fromkeys(dtype for case in group.cases for dtype in case.dtypes):
        cases = [case for case in group.cases if dtype in case.dtypes]
        for layout in group.layouts if dtype == FLOAT32 else (CONTIGUOUS,):
            yield Setting(dtype, layout, VALUES), cases
        if dtype == FLOAT32:
            smooth = [case for case in cases if case.differentiable]
            yield Setting(dtype, CONTIGUOUS, GRADIENTS), smooth


def measure(compiler: Compiler, title: str, wanted: Callable[[str, Setting], bool]) -> Found:
    """What differs in a group, by the case's name and the setting.

    Args:
        compiler: Compiles a function.
        title: The group's.
        wanted: Whether a case, by its name, is measured in a setting.
    """
    (group,) = (group for group in GROUPS if group.title == title)
    found: Found = {}
    for setting, cases in settings_of(group):
        chosen = [case for case in cases if wanted(case.name, setting)]
        _say(f"{title}: {setting}: {len(chosen)}")
        usable = [case for case in chosen if _expected(case, setting) is not None]
        by_operands = sorted(usable, key=lambda case: case.operands)
        for name, kinds in _differing(by_operands, setting, compiler):
            found.setdefault(name, {})[str(setting)] = kinds
    _say("")
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def _differing(
    cases: Sequence[Case], setting: Setting, compiler: Compiler
) -> Iterator[tuple[str, list[str]]]:
    together = _IMAGES_AT_ONCE if cases and cases[0].operands == "image" else _AT_ONCE
    for start in range(0, len(cases), together):
        yield from _of_batch(cases[start : start + together], setting, compiler)


def _of_batch(
    cases: Sequence[Case], setting: Setting, compiler: Compiler
) -> Iterator[tuple[str, list[str]]]:
    """The results of one compiled function; halves of it, where it raises."""
    try:
        found = _run(cases, setting, compiler)
    except Exception as error:  # noqa: BLE001 - whichever it is, it is what is looked for
        if len(cases) == 1:
            yield cases[0].name, [f"{RAISES} {type(error).__name__}"]
            return
        half = len(cases) // 2
        yield from _of_batch(cases[:half], setting, compiler)
        yield from _of_batch(cases[half:], setting, compiler)
        return
    for case, result in zip(cases, found, strict=True):
        kinds = differences(result, _expected(case, setting))
        if kinds:
            elsewhere = _differences_elsewhere(case, setting, result)
            yield (
                case.name,
                [kind if kind in elsewhere else f"{kind}{AS_STRIDED}" for kind in sorted(kinds)],
            )


def _differences_elsewhere(case: Case, setting: Setting, result: Any) -> dict[str, int]:
    """What differs from what eager computes for the same numbers in memory with gaps."""
    if setting.layout == FEW:
        return differences(result, _expected(case, setting))
    apart = _expected(case, replace(setting, layout=APART))
    return differences(result, _expected(case, setting) if apart is None else apart)


@functools.cache
def _expected(case: Case, setting: Setting) -> Any:
    """What eager computes, or None where it raises."""
    try:
        found = _run([case], setting, lambda function: function)[0]
    except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError):
        return None
    # Without a gradient there is nothing to compare.
    return None if setting.what == GRADIENTS and not found else found


def _run(cases: Sequence[Case], setting: Setting, compiler: Compiler) -> list[Any]:
    inputs = [operands(case.operands, setting.dtype, setting.layout) for case in cases]
    if setting.what == VALUES:
        # Cases of the same operands share them, so that they come into one kernel.
        kinds = list(dict.fromkeys(case.operands for case in cases))
        shared = {kind: operands(kind, setting.dtype, setting.layout) for kind in kinds}

        def values(given: Any) -> Any:
            return [case.function(*given[case.operands]) for case in cases]

        with _quietly():
            return list(compiler(values)(shared))

    def calls(given: Any) -> Any:
        return [case.function(*one) for case, one in zip(cases, given, strict=True)]

    for leaf in pytree.tree_leaves(inputs):
        leaf.requires_grad_(leaf.is_floating_point() or leaf.is_complex())
    with _quietly():
        results = compiler(calls)(inputs)
        return _gradients(results, inputs)


def _gradients(results: Any, inputs: Sequence[tuple[Tensor, ...]]) -> list[Any]:
    """Each case's gradients; of all cases at once, as one backward computes them."""
    outputs = [out for out in pytree.tree_leaves(results) if out.requires_grad]
    leaves = pytree.tree_leaves(inputs)
    if not outputs:
        return [[] for _ in inputs]
    found = iter(
        torch.autograd.grad(
            outputs,
            [leaf for leaf in leaves if leaf.requires_grad],
            [torch.ones_like(out) for out in outputs],
            allow_unused=True,
        )
    )
    return [[next(found) for leaf in one if leaf.requires_grad] for one in inputs]


class _quietly(warnings.catch_warnings):  # noqa: N801 - a context manager
    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        return entered
