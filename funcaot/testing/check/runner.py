"""Run every row of a check."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from funcaot.errors import FuncaotError, MissingRuleError
from funcaot.testing.check import target as targets
from funcaot.testing.check.properties import PROPERTIES, Finding, first_line
from funcaot.testing.check.result import (
    ERROR,
    PASSES,
    UNSUPPORTED,
    WRONG,
    CheckResult,
    Row,
)
from funcaot.testing.composition import Composition, applies, parse, singles
from funcaot.testing.derivatives import FiniteDifferences
from funcaot.testing.generator import Case, Mismatch, is_slow, run_case
from funcaot.testing.program import program_of
from funcaot.testing.records import FunctionInfo, Sample
from funcaot.testing.samples import SEED

Progress = Callable[[str], None]
# Beyond the single transforms: what people meet first.
EXTRA = ("vmap_of_grad", "grad_of_vmap", "autograd_of_autograd", "vmap_of_vmap", "jacfwd_of_jacrev")
REMEDIES = {
    "autograd": "write backward, or set generate_backward_rule = True if there is a jvp.",
    "forward_ad": "write jvp, or set generate_jvp_rule = True if backward is linear.",
    "vmap": "write vmap, or set generate_vmap_rule = True if the rules are torch operations.",
    "gradgrad": "backward is once_differentiable: write it with differentiable operations.",
}
GRADIENT_REMEDY = (
    "if the rule is not meant to be the derivative, give its intended value by ref=... (--ref)."
)

GUESSED = (
    " The arguments were guessed: if one isn't meant to be a tensor, or has to lie in another "
    "range, give inputs (--inputs)."
)


def check(
    function: Any,
    inputs: Any = None,
    *,
    ref: Callable[..., Any] | None = None,
    transforms: Sequence[str] | None = None,
    seed: int = SEED,
    progress: Progress | None = None,
) -> CheckResult:
    """Tries a Function, or any callable of tensors, under every transform.

    Args:
        function: An ``autograd.Function`` class, a ``custom_vjp`` function, a compiled callable.
        inputs: The arguments of one call (a tensor or a tuple), or a list of such. None: small
            float64 tensors are guessed.
        ref: A plain-torch function with the intended values and derivatives, for rules that are
            deliberately not the derivative.
        transforms: Names such as ``"vmap_of_grad"``; by default every single one and a few
            compositions.
        seed: Of guessed inputs.
        progress: Called with the name of each row before it runs.

    Returns:
        The result; it prints as a table, and ``raise_for_failures()`` raises.

    Raises:
        FuncaotError: The inputs can't be guessed, or the target can't be called.

    Example:
        >>> import torch
        >>> from funcaot.testing import check
        >>> check(torch.sin, transforms=["grad", "vmap"])
        CheckResult(sin: 11 of 11 pass, ok=True)
    """
    targets.refuse_other(function)
    samples = (
        targets.guess_samples(function, seed) if inputs is None else targets.as_samples(inputs)
    )
    targets.refuse_undifferentiable(function, samples)
    guessed = GUESSED if inputs is None and len(samples[0].values) > 1 else ""
    info = targets.info_of(function, samples)
    chains = default_chains() if transforms is None else [parse(name) for name in transforms]
    tell = progress or (lambda name: None)
    rows = [
        replace(row, remedy=row.remedy + guessed) if row.remedy == GRADIENT_REMEDY else row
        for row in property_rows(info, ref, samples, tell)
    ]
    oracle = targets.with_oracle(info, ref)
    for chain in chains:
        if applies(oracle, chain, torch.float64):
            tell(chain.name)
            rows.append(transform_row(oracle, chain, samples))
    return CheckResult(info.name, tuple(map(repr, samples)), tuple(rows), seed)


def default_chains() -> list[Composition]:
    """Every single transform that starts no code generator, and a few compositions."""
    return [*(chain for chain in singles() if not is_slow(chain)), *map(parse, EXTRA)]


def property_rows(
    info: FunctionInfo,
    ref: Callable[..., Any] | None,
    samples: Sequence[Sample],
    tell: Progress,
) -> Iterator[Row]:
    """The gradient against finite differences, then how backward behaves."""
    for name, composition in (("gradient", "autograd"), ("jvp rule", "jvp")):
        chain = parse(composition)
        if all(getattr(info, f"supports_{need}") for need in chain.needs):
            tell(name)
            intended = replace(info, ref=ref) if ref is not None else info
            row = transform_row(intended, chain, samples)
            is_wrong = row.status == WRONG and ref is None
            yield replace(row, name=name, remedy=GRADIENT_REMEDY if is_wrong else row.remedy)
    if info.supports_autograd:
        for name, probe in PROPERTIES:
            if name != "second order" or info.supports_gradgrad:
                tell(name)
                yield property_row(name, probe, info, samples)


def property_row(
    name: str,
    probe: Callable[..., Finding | None],
    info: FunctionInfo,
    samples: Sequence[Sample],
) -> Row:
    """Runs one probe on each sample, until one finds something."""
    start = time.perf_counter()
    finding = None
    for sample in samples:
        try:
            finding = probe(program_of(info, sample, FiniteDifferences()))
        except Exception as error:  # noqa: BLE001  (reported as a row: a check must go on)
            return replace(error_row(name, error, info), seconds=time.perf_counter() - start)
        if finding is not None:
            break
    seconds = time.perf_counter() - start
    if finding is None:
        return Row(name, PASSES, seconds=seconds)
    # A clipped gradient is not linear on purpose: that limits what can be generated, no more.
    status = UNSUPPORTED if name == "linear backward" else WRONG
    return Row(name, status, finding.largest_error, finding.detail, finding.remedy, seconds)


def transform_row(info: FunctionInfo, chain: Composition, samples: Sequence[Sample]) -> Row:
    """Runs one composition on each sample; the first failure is the row."""
    start = time.perf_counter()
    case = Case(info, chain, samples[0].name)
    if case.missing:
        remedy = REMEDIES.get(case.missing[0], "")
        detail = f"no rule for {', '.join(case.missing)}"
        return Row(chain.name, UNSUPPORTED, detail=detail, remedy=remedy)
    largest = 0.0
    for sample in samples:
        try:
            difference = run_case(replace(case, sample=sample.name))
        except Mismatch as error:
            detail = str(error).split(": ", 1)[-1]
            row = Row(chain.name, WRONG, detail=f"{detail} (on {sample!r})")
            return replace(row, seconds=time.perf_counter() - start)
        except Exception as error:  # noqa: BLE001  (reported as a row: a check must go on)
            row = error_row(chain.name, error, info)
            return replace(row, seconds=time.perf_counter() - start)
        largest = max(largest, difference.largest)
    return Row(chain.name, PASSES, largest, seconds=time.perf_counter() - start)


def error_row(name: str, error: Exception, info: FunctionInfo) -> Row:
    """A row for an exception: a missing rule is told from anything else."""
    if isinstance(error, FuncaotError):
        status = UNSUPPORTED if isinstance(error, MissingRuleError) else ERROR
        return Row(name, status, detail=error.what, remedy=error.remedy or "")
    detail = first_line(error)
    raised = traceback.extract_tb(error.__traceback__)
    if raised:
        detail += f" ({raised[-1].name}, line {raised[-1].lineno})"
    return Row(name, ERROR, detail=detail)
