"""Generate test cases from the database and the table, and run one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from funcaot.testing.compare import Difference, compare
from funcaot.testing.composition import (
    Composition,
    applies,
    chosen,
    missing_support,
    pairs,
    parse,
    singles,
)
from funcaot.testing.derivatives import Derivatives, EagerAutograd, FiniteDifferences
from funcaot.testing.program import Program, program_of
from funcaot.testing.records import FunctionInfo, Sample

SEED = 1234
# Finite differences of finite differences: each order loses digits.
NUMERICAL_TOLERANCE = (1e-4, 1e-5)


# What the fast subset does with every Function, and one in how many of everything else.
ALWAYS = frozenset(
    {"call", "grad", "autograd_strided", "jvp", "dual", "vmap", "functionalize", "compile"}
)
SHARE = 23


def seed(number: int = SEED) -> None:
    """Seeds torch's generators; ``torch.manual_seed`` is slow where no GPU is used yet."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


class Mismatch(AssertionError):
    """The code under test ran and disagrees with the oracle.

    Example:
        >>> import torch
        >>> from funcaot.testing import Mismatch, check
        >>> result = check(torch.sin, ref=torch.cos, transforms=["gradient"])
        >>> try:
        ...     result.raise_for_failures()
        ... except Mismatch as error:
        ...     print(str(error).splitlines()[0])
        sin fails 1 of 1 checks:
    """


class Generated:
    """A generated test, of a transform or of a row: what the pytest plugin looks for."""

    info: FunctionInfo

    @property
    def name(self) -> str:
        """What is selected by ``--funcaot-transforms``."""
        raise NotImplementedError

    def explain(self) -> str:
        """What to say of a failure; empty for a transform, which is explained by its graph."""
        return ""


@dataclass(frozen=True)
class Case(Generated):
    """One generated test.

    Attributes:
        info: The Function.
        composition: The transforms.
        sample: The name of the sample.
        dtype: The dtype of the differentiable tensors.
        device: Where the tensors are.
        numerical: Derivatives by finite differences of the Function instead of the reference.

    Example:
        >>> import torch
        >>> from funcaot.testing import opinfo, parametrize_transforms
        >>> info = opinfo(torch.sin, [torch.ones(2, dtype=torch.float64, requires_grad=True)])
        >>> (parameter,) = parametrize_transforms([info], ["vmap_of_grad"]).args[1]
        >>> case = parameter.values[0]
        >>> case.run().message is None
        True
        >>> case.id
        'sin-vmap_of_grad-sample0-float64-cpu'
    """

    info: FunctionInfo
    composition: Composition
    sample: str
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    numerical: bool = False

    @property
    def id(self) -> str:
        """``NumpyMultiply-vmap_of_grad-matrix-float64-cpu``."""
        words = [self.info.name, self.composition.name, self.sample]
        words += ["numerical"] if self.numerical else []
        return "-".join([*words, str(self.dtype).removeprefix("torch."), self.device])

    @property
    def name(self) -> str:
        """The name of the composition."""
        return self.composition.name

    @property
    def missing(self) -> tuple[str, ...]:
        """The rules that the composition needs and the Function lacks."""
        return missing_support(self.info, self.composition)

    def run(self) -> Difference | None:
        """Runs the case and checks what should happen.

        Returns:
            How far the result was from the oracle's, or None where a rule is missing and the
            error said so.

        Raises:
            Mismatch: A wrong result, a missing rule that was needed and nobody complained about,
                or a complaint that doesn't name the Function.
        """
        return run_without_rule(self) if self.missing else run_case(self)

    def __repr__(self) -> str:
        """The id."""
        return f"Case({self.id})"

    def find_sample(self) -> Sample:
        """The sample of this case, made afresh."""
        for sample in self.info.sample_inputs(self.device, self.dtype):
            if sample.name == self.sample:
                return sample
        raise KeyError(f"{self.info.name} has no sample {self.sample!r}")


_ONCE = "@once_differentiable"


def build(case: Case) -> Program:
    """The transformed program of a case with its oracle."""
    use_reference = case.info.ref is not None and not case.numerical
    derivatives: Derivatives = EagerAutograd() if use_reference else FiniteDifferences()
    seed()
    return case.composition.apply(program_of(case.info, case.find_sample(), derivatives))


def run_case(case: Case) -> Difference:
    """Runs one case.

    Args:
        case: What to run.

    Returns:
        How far the result is from the oracle's.

    Raises:
        Mismatch: The result disagrees, or the call changed its inputs.
        Exception: Whatever the code under test raised, unchanged.
    """
    program = build(case)
    seed()
    expected = program.expected(*program.primals)
    before = [primal.clone() for primal in program.primals]
    seed()
    actual = program.run(*program.primals)
    tolerance = NUMERICAL_TOLERANCE if case.info.ref is None or case.numerical else None
    difference = compare(actual, expected, case.info.tolerance or tolerance)
    if difference.message is not None:
        raise Mismatch(f"{case.id}: {difference.message}")
    changed = compare(program.primals, before)
    if changed.message is not None:
        raise Mismatch(
            f"{case.id}: the call changed an input it does not declare: {changed.message}"
        )
    return difference


def run_without_rule(case: Case) -> Difference | None:
    """Runs a case for which the Function lacks a rule: it raises, naming the Function, or is right.

    A single transform needs its rule and must raise. A composition may get by without it: the
    outer transform need not reach the Function at all, and a compiled one has other derivatives.

    Returns:
        How far the result is from the oracle's, or None where it raised.

    Raises:
        Mismatch: A wrong result, or one without the rule, or an error that doesn't say whose rule
            is missing.
    """
    try:
        difference = run_case(case)
    except Mismatch:
        raise
    except (RuntimeError, NotImplementedError) as error:
        # What torch says of a second derivative, and the oracle of one, name no Function.
        known = case.info.limitation_for(case.composition.name, case.sample)
        excused = known is not None or "gradgrad" in case.missing or _ONCE in str(error)
        if case.info.name not in str(error) and not excused:
            message = f"{case.id}: the error does not name {case.info.name}: {error}"
            raise Mismatch(message) from error
        return None
    if len(case.composition.transforms) <= 1:
        rules = ", ".join(case.missing)
        raise Mismatch(f"{case.id}: passes, although {case.info.name} has no rule for {rules}")
    return difference


def cases_of(
    info: FunctionInfo, compositions: Iterable[Composition], *, all_samples: bool, device: str
) -> Iterator[Case]:
    """The cases of one Function.

    Args:
        info: The Function.
        compositions: Which chains; those without a meaning for the Function are left out.
        all_samples: Every sample and dtype, instead of the first of each.
        device: Where the tensors are.

    Yields:
        Cases with distinct ids.
    """
    samples = {
        dtype: list(info.sample_inputs(device, dtype))
        for dtype in (info.dtypes if all_samples else info.dtypes[:1])
    }
    for composition in compositions:
        for dtype, made in samples.items():
            if applies(info, composition, dtype):
                for sample in made if all_samples else made[:1]:
                    # torch can't hold the tangent of a tensor that overlaps itself.
                    if not ("forward_ad" in composition.needs and overlaps_itself(sample)):
                        yield Case(info, composition, sample.name, dtype, device)


def overlaps_itself(sample: Sample) -> bool:
    """Whether a differentiated tensor of the sample is expanded."""
    return any(
        isinstance(value, torch.Tensor)
        and value.requires_grad
        and any(
            stride == 0 and size > 1
            for size, stride in zip(value.shape, value.stride(), strict=True)
        )
        for value in sample.values
    )


def fast_cases(infos: Iterable[FunctionInfo], device: str = "cpu") -> Iterator[Case]:
    """A subset that takes a minute: each Function, every kind of transform, compositions in turn.

    Each Function is tested with the transforms of ``ALWAYS`` and with a share of all others, so
    that together the Functions cover every single one and every composition several times.
    """
    always = [chain for chain in singles() if chain.name in ALWAYS]
    others = [chain for chain in singles() if not is_slow(chain) and chain.name not in ALWAYS]
    deep = [*others, *pairs(), *chosen()]
    for position, info in enumerate(infos):
        share = [chain for index, chain in enumerate(deep) if (index + position) % SHARE == 0]
        yield from cases_of(info, [*always, *share], all_samples=False, device=device)


def all_cases(infos: Iterable[FunctionInfo], device: str = "cpu") -> Iterator[Case]:
    """Everything: single transforms on all samples and dtypes, all pairs, the chosen chains."""
    for info in infos:
        yield from cases_of(
            info, [c for c in singles() if not is_slow(c)], all_samples=True, device=device
        )
        yield from cases_of(info, [*pairs(), *chosen()], all_samples=False, device=device)


def numerical_cases(infos: Iterable[FunctionInfo], device: str = "cpu") -> Iterator[Case]:
    """First derivatives against finite differences of the Function itself, not its reference."""
    names = {"autograd", "jvp"}
    for info in infos:
        if info.true_derivative and not info.random and torch.float64 in info.dtypes:
            chains = [c for c in singles() if c.name in names and not missing_support(info, c)]
            for case in cases_of(info, chains, all_samples=False, device=device):
                yield Case(case.info, case.composition, case.sample, numerical=True)


def is_slow(composition: Composition) -> bool:
    """Whether a chain starts a code generator, which takes seconds."""
    return composition.contains("compile") and "inductor" in composition.name


INDUCTOR_SAMPLE = (
    ("Square", "compile_inductor"),
    ("NumpySinCos", "compile_inductor"),
    ("LayerNorm", "autograd_of_compile_inductor"),
    ("Attention", "autograd_of_compile_inductor"),
    ("StraightThroughRound", "autograd_of_compile_inductor"),
    ("LayoutBranch", "autograd_strided_of_compile_inductor"),
    ("OldSquare", "autograd_of_compile_inductor"),
    ("SinInPlace", "autograd_of_compile_inductor"),
    ("Multiply", "vmap_of_compile_inductor"),
    ("Softmax", "jvp_of_compile_inductor"),
    ("OddBackwardInBackward", "autograd_of_autograd_of_compile_inductor"),
    ("CallsFunctions", "vmap_of_grad_of_compile_inductor"),
)


def inductor_cases(infos: Iterable[FunctionInfo], device: str = "cpu") -> Iterator[Case]:
    """A sample of Functions with real generated code: each takes seconds to compile."""
    known = {info.name: info for info in infos}
    for name, composition in INDUCTOR_SAMPLE:
        if name in known:
            yield from cases_of(known[name], [parse(composition)], all_samples=False, device=device)
