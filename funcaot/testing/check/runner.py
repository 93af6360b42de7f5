"""Run every row of a check."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch

from funcaot.errors import FuncaotError, MissingRuleError
from funcaot.testing.check import target as targets
from funcaot.testing.check.compiled import (
    compiled_info,
    compiled_trials,
    differentiated,
    is_compile,
)
from funcaot.testing.check.places import place_of
from funcaot.testing.check.probes.orders import INTENDED
from funcaot.testing.check.probes.probe import (
    ERROR,
    PASSES,
    SEVERITY,
    UNSUPPORTED,
    WARNS,
    WRONG,
    Finding,
    Probe,
)
from funcaot.testing.check.probes.properties import first_line
from funcaot.testing.check.result import FAILING, CheckResult, Row
from funcaot.testing.check.rows import PROBES, probes_of, samples_for, word_of
from funcaot.testing.check.variants import count_of, described, ordinary, range_of, smallest
from funcaot.testing.composition import Composition, applies, parse, singles
from funcaot.testing.generator import Case, Mismatch, is_slow, overlaps_itself, run_case
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
GUESSED = (
    " The arguments were guessed: if one isn't meant to be a tensor, or has to lie in another "
    "range, give inputs (--inputs)."
)


DRAWS = (
    "It draws random numbers: a transform that runs it again, or on a batch, draws others. Draw "
    "them outside and pass them as an argument."
)


class CheckOptions(TypedDict, total=False):
    """Further keywords of ``check``.

    Attributes:
        explore: Try variants of the samples too (negatives, zeros, ties, large and tiny values,
            other layouts, empty, broadcasting), where the Function takes them. By default only of
            arguments that were guessed.
        backend: The backend of the compiled column; None leaves the column out.
    """

    explore: bool
    backend: str | None


@dataclass(frozen=True)
class _Subject:
    """What the rows are about: the record, the samples, and the same thing compiled."""

    info: FunctionInfo
    samples: tuple[Sample, ...]
    backend: str | None
    compiled: FunctionInfo | None


def check(
    function: Any,
    inputs: Any = None,
    *,
    ref: Callable[..., Any] | None = None,
    transforms: Sequence[str] | None = None,
    seed: int = SEED,
    progress: Progress | None = None,
    **options: Unpack[CheckOptions],
) -> CheckResult:
    """Tries a Function, or any callable of tensors, under every transform.

    Args:
        function: An ``autograd.Function`` class, a ``custom_vjp`` function, a compiled callable.
        inputs: The arguments of one call (a tensor or a tuple), or a list of such. None: small
            float64 tensors are guessed, and variants of them are tried.
        ref: A plain-torch function with the intended values and derivatives, for rules that are
            deliberately not the derivative.
        transforms: Names such as ``"vmap_of_grad"``; by default every single one and a few
            compositions. Where names of rows such as ``"second_order"`` are among them, only these
            rows are tried, else all are.
        seed: Of guessed inputs.
        progress: Called with the name of each row before it runs.
        **options: ``explore``: try variants of the inputs that were given too; ``backend``: of the
            compiled column (``"eager"`` by default), None leaves it out.

    Returns:
        The result; it prints as a table, and ``raise_for_failures()`` raises.

    Raises:
        FuncaotError: The inputs can't be guessed, or the target can't be called.

    Example:
        >>> import torch
        >>> from funcaot.testing import check
        >>> result = check(torch.sin, transforms=["grad", "vmap"])
        >>> result.ok, result.row("grad").compiled
        (True, 'passes')
    """
    refuse_options(options)
    targets.refuse_other(function)
    found = targets.find_samples(function, inputs, seed, explore=options.get("explore"))
    targets.refuse_undifferentiable(function, found.samples)
    info = targets.info_of(function, found.samples)
    chains, words = chosen_rows(transforms)
    backend = options.get("backend", "eager")
    subject = subject_of(info, found.samples, backend)
    tell = progress or (lambda name: None)
    rows = list(property_rows(subject, ref, words, tell))
    if found.guessed and len(found.samples[0].values) > 1:
        rows = [
            replace(row, remedy=row.remedy + GUESSED) if row.remedy == INTENDED else row
            for row in rows
        ]
    oracle = subject_of(targets.with_oracle(info, ref), found.samples, backend)
    for chain in chains:
        if applies(oracle.info, chain, torch.float64):
            tell(chain.name)
            rows.append(transform_row(oracle, chain))
    if any(row.status == WRONG for row in rows) and draws(info, found.samples[0]):
        rows = [
            replace(row, remedy=f"{row.remedy} {DRAWS}".strip()) if row.status == WRONG else row
            for row in rows
        ]
    samples = tuple(map(described, found.samples))
    return CheckResult(
        info.name, samples, tuple(rows), seed, found.left_out, range_of(found.samples)
    )


def draws(info: FunctionInfo, sample: Sample) -> bool:
    """Whether a call draws from torch's generator of random numbers."""
    before = torch.get_rng_state()
    try:
        info.op(*sample.values, **sample.kwargs)
    except Exception:  # noqa: BLE001  (a row has said so)
        return False
    return not torch.equal(before, torch.get_rng_state())


def refuse_options(options: CheckOptions) -> None:
    """Checks the names of further keywords.

    Raises:
        FuncaotError: One isn't known.
    """
    unknown = sorted(set(options) - set(CheckOptions.__annotations__))
    if unknown:
        raise FuncaotError(
            f"funcaot.testing.check has no option {unknown[0]!r}.",
            expected=f"keywords among {', '.join(sorted(CheckOptions.__annotations__))}",
            got=repr(unknown[0]),
            remedy="correct the name.",
        )


def subject_of(info: FunctionInfo, samples: Sequence[Sample], backend: str | None) -> _Subject:
    """A record with the same thing compiled beside it."""
    return _Subject(info, tuple(samples), backend, compiled_info(info, backend))


def chosen_rows(names: Sequence[str] | None) -> tuple[list[Composition], list[str]]:
    """The compositions and the rows that names stand for; no row means every row."""
    if names is None:
        return default_chains(), []
    known = {word_of(probe) for probe in PROBES}
    words = [name.strip().replace(" ", "_") for name in names]
    rows = [word for word in words if word in known]
    return [parse(word) for word in words if word not in known], rows


def default_chains() -> list[Composition]:
    """Every single transform that starts no code generator, and a few compositions."""
    return [*(chain for chain in singles() if not is_slow(chain)), *map(parse, EXTRA)]


def property_rows(
    subject: _Subject, ref: Callable[..., Any] | None, words: Sequence[str], tell: Progress
) -> Iterator[Row]:
    """The rules against finite differences, then how they behave."""
    for probe in probes_of(subject.info):
        if words and word_of(probe) not in words:
            continue
        tell(probe.name)
        # A reference says what a rule is meant to be; how it behaves needs none.
        intended = probe.name in ("gradient", "jvp rule") and ref is not None
        about = replace(subject, info=replace(subject.info, ref=ref)) if intended else subject
        if intended and subject.compiled is not None:
            about = replace(about, compiled=replace(subject.compiled, ref=ref))
        yield property_row(about, probe)


def property_row(subject: _Subject, probe: Probe) -> Row:
    """Runs one probe on each of its samples, plain and compiled."""
    start = time.perf_counter()
    samples = samples_for(probe, subject.samples)
    row = probed(subject.info, probe, samples)
    compiled = subject.compiled
    if probe.compiled and compiled is not None and row.status not in FAILING:
        if probe.fresh:
            compiled = compiled_info(subject.info, subject.backend) or compiled
        row = with_compiled(row, probed(compiled, probe, smallest(samples)[-1:]))
    file, line = place_of(subject.info.function or subject.info.op, probe.rule)
    return replace(row, seconds=time.perf_counter() - start, file=file, line=line)


def probed(info: FunctionInfo, probe: Probe, samples: Sequence[Sample]) -> Row:
    """The worst of what a probe finds on some samples."""
    worst, largest = Finding(status=PASSES), None
    for sample in samples:
        try:
            found = probe.run(info, sample)
        except Exception as error:  # noqa: BLE001  (reported as a row: a check must go on)
            row = error_row(probe.name, error)
            found = Finding(row.detail, row.remedy, status=row.status)
        if found is None:
            continue
        if found.largest_error is not None:
            largest = max(largest or 0.0, found.largest_error)
        # The first failure is told: what a later sample raises must not hide a wrong number.
        milder = worst.status not in FAILING
        if milder and SEVERITY.index(found.status) > SEVERITY.index(worst.status):
            worst = replace(found, detail=f"{found.detail} (on {sample!r})")
    return Row(probe.name, worst.status, largest, worst.detail, worst.remedy)


def with_compiled(row: Row, compiled: Row) -> Row:
    """A row with the compiled column; what only the compiled callable gets wrong is told."""
    if SEVERITY.index(compiled.status) <= SEVERITY.index(row.status):
        return replace(row, compiled=compiled.status)
    status = compiled.status if compiled.status in FAILING | {WARNS} else row.status
    return replace(
        row,
        status=status,
        compiled=compiled.status,
        detail=f"compiled: {compiled.detail}",
        remedy=compiled.remedy,
        largest_error=compiled.largest_error,
    )


def transform_row(subject: _Subject, chain: Composition) -> Row:
    """Runs one composition on each sample; the first failure is the row."""
    start = time.perf_counter()
    info = subject.info
    case = Case(info, chain, subject.samples[0].name)
    if case.missing:
        remedy = REMEDIES.get(case.missing[0], "")
        detail = f"no rule for {', '.join(case.missing)}"
        row = Row(chain.name, UNSUPPORTED, detail=detail, remedy=remedy)
    else:
        chosen = subject.samples if chain.name == "vmap" else ordinary(subject.samples)
        row = composed(info, [chain], allowed(chain, chosen))
        few = allowed(chain, smallest(subject.samples))[-1:]
        if is_compile(chain) and row.status not in FAILING:
            # Ok means differentiated, not only run.
            row = with_compiled(row, composed(info, differentiated(info, chain), few))
        elif subject.compiled is not None and row.status not in FAILING:
            trials = compiled_trials(info, chain)
            if trials:
                row = with_compiled(row, composed(subject.compiled, trials, few))
    file, line = place_of(info.function or info.op, rule_of(chain))
    seconds = time.perf_counter() - start
    return replace(row, name=chain.name, seconds=seconds, file=file, line=line)


def allowed(chain: Composition, samples: Sequence[Sample]) -> list[Sample]:
    """Without those that torch itself can't push a tangent through.

    A Jacobian in forward mode of no elements is a batch of no tangents, for which some operations
    of torch under ``vmap`` fail: a number times a scalar that was batched.
    """
    if "forward_ad" not in chain.needs:
        return list(samples)
    kept = [sample for sample in samples if not overlaps_itself(sample)]
    if any(entry.name in ("jacfwd", "hessian") for entry in chain.transforms):
        kept = [sample for sample in kept if count_of(sample)]
    return kept


def composed(info: FunctionInfo, chains: Sequence[Composition], samples: Sequence[Sample]) -> Row:
    """Runs compositions on each sample, until one fails."""
    largest = 0.0
    for chain in chains:
        for sample in samples:
            try:
                difference = run_case(Case(info, chain, sample.name))
            except Mismatch as error:
                detail = str(error).split(": ", 1)[-1]
                return Row(chain.name, WRONG, detail=f"{detail} (on {sample!r})")
            except Exception as error:  # noqa: BLE001  (reported as a row: a check must go on)
                row = error_row(chain.name, error)
                return replace(row, detail=f"{row.detail} (on {sample!r})")
            largest = max(largest, difference.largest)
    return Row(chains[-1].name, PASSES, largest)


def rule_of(chain: Composition) -> str:
    """The staticmethod that a composition is most about."""
    for need, rule in (("vmap", "vmap"), ("forward_ad", "jvp"), ("autograd", "backward")):
        if need in chain.needs:
            return rule
    return "forward"


def error_row(name: str, error: Exception) -> Row:
    """A row for an exception: a missing rule is told from anything else."""
    if isinstance(error, FuncaotError):
        status = UNSUPPORTED if isinstance(error, MissingRuleError) else ERROR
        return Row(name, status, detail=error.what, remedy=error.remedy or "")
    detail = first_line(error)
    raised = traceback.extract_tb(error.__traceback__)
    if raised:
        detail += f" ({raised[-1].name}, line {raised[-1].lineno})"
    return Row(name, ERROR, detail=detail)
