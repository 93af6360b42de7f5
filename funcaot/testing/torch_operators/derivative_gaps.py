"""What torch can't differentiate among the operators of ``op_db``, and which of it has a rule.

``coverage`` makes a page of it. A gap is found by asking eager torch for a derivative and reading
its error; whether a rule closes it, by asking again inside of ``funcaot.install``.
"""

from __future__ import annotations

import fnmatch
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot.functions.interception import install
from funcaot.testing.program import TensorFunction, is_differentiable, weights_like
from funcaot.testing.torch_operators.operators import (
    Call,
    backward,
    call_of,
    double_backward,
    dtype_for,
    jvp,
    vmap,
)
from funcaot.testing.torch_operators.torch_opinfo import full_name, samples_of

__all__ = ["WHY_NOT", "DerivativeGap", "derivatives_page", "find_gaps", "reason_for"]

SAMPLES = 4
_LACKING = (
    "is not implemented",
    "that does not support it",
    "has not been implemented yet",
    "Batching rule not implemented",
    "does not yet have a batching rule",
    "do not yet support",
    "must override the setup_context staticmethod",
)


def forward_over_reverse(function: TensorFunction, call: Call) -> tuple[torch.Tensor, ...]:
    """The gradient, pushed forward along every differentiable argument."""

    def gradient(*moving: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def outputs(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(call.primals)
            for index, value in zip(call.argnums, values, strict=True):
                filled[index] = value
            return tuple(out for out in function(*filled) if is_differentiable(out))

        found, pull = torch.func.vjp(outputs, *moving)
        return pull(tuple(weights_like(output.detach(), 0.2) for output in found))

    primals = tuple(call.primals[index] for index in call.argnums)
    tangents = tuple(weights_like(primal, 0.9) for primal in primals)
    return torch.func.jvp(gradient, primals, tangents)[1]


STEPS: dict[str, Callable[..., Any]] = {
    "first order": backward,
    "second order": double_backward,
    "forward mode": jvp,
    "forward over reverse": forward_over_reverse,
    "vmap": vmap,
}

# Patterns of operators that still have a gap, with the reason.
WHY_NOT: dict[str, str] = {
    "linspace*": "ends given as tensors, which torch's gradient takes for constants",
    "torch._scaled_mm*": "products of quantised numbers, which have no derivative",
    "floor_divide": "constant between jumps, and torch can't hand the number of `x // 2` to a rule "
    "at a level of a transform; `torch.div` that rounds down has derivatives",
    "_segment_reduce*": "products of segments, where an element may be zero",
    "to_sparse": "a sparse tangent; torch's forward mode has none",
    "nextafter": "a neighbour among floating-point numbers, which isn't a function of reals",
    "_batch_norm_with_update": "writes to running statistics that all examples share",
    "as_strided_scatter": "goes by places in memory, which differ in a batch",
    "column_stack": "an op of several dimensions; `torch.cat` and `stack` have `vmap`",
    "equal": "answers with one value of Python for all examples",
    "narrow": "a start that is a tensor has to be read as a number",
    "tensor_split": "sections that are a tensor have to be read as numbers",
    "nn.functional.rrelu": "draws random numbers, in place of an argument",
    "nonzero": "sizes that values decide, which differ between examples",
    "nonzero_static": "returns indices, which have no derivative",
    "randint_like": "draws integers, whatever it is given",
    "randint": "draws integers, whatever it is given",
}

# Where torch differentiates its own formulas and silently gets something else; all have rules.
PUT_RIGHT: dict[str, str] = {
    "`layer_norm`": "the third order, forward mode twice, and the derivative of gradients for each "
    "example of a `vmap`, as in `hessian` by weights: statistics are taken for constants",
    "`batch_norm`, `instance_norm`": "the same",
    "`linalg.solve`, `tensorsolve`, `det`, `slogdet`, `logdet`, `householder_product`": "forward "
    "mode twice, or the gradient of a tangent: the result is taken for a constant",
    "`linalg.det` at levels of transforms, where singular values are equal": "the second order, "
    "which is NaN",
    "`weight_norm` by the first or last dimension": "the second order: norms are taken for "
    "constants",
    "`linear_cross_entropy` in chunks": "the second order, and forward mode: gradients are "
    "taken for constants",
    "`cholesky_inverse`": "forward mode, which isn't the transpose of its gradient",
    "`linalg.eigh`, `linalg.eig`": "the gradient of a tangent, which is NaN",
    "`scatter_reduce` by products": "forward mode: it is taken for a constant",
}
# Raises in torch beyond what the table asks for; these have rules, too.
BEYOND: dict[str, str] = {
    "`huber_loss`, `soft_margin_loss`": "forward over reverse",
    "`glu`": "forward mode twice, or the gradient of a tangent",
    "`weight_norm`, packed sequences, `cdist` of more than 25 rows": "forward mode, which `op_db` "
    "doesn't ask of them",
}


@dataclass(frozen=True)
class DerivativeGap:
    """A derivative of an operator that eager torch lacks.

    Attributes:
        operator: Its full name.
        step: Which derivative.
        error: What torch says.
        closed: Whether it works inside of ``funcaot.install``.
    """

    operator: str
    step: str
    error: str
    closed: bool = False


def find_gaps(
    operators: Iterable[Any], progress: Callable[[str], object] = lambda name: None
) -> Iterator[DerivativeGap]:
    """The gaps of some of torch's ``OpInfo`` records.

    Args:
        operators: The records.
        progress: Is told the name of each operator that begins.
    """
    for operator in operators:
        name = full_name(operator)
        progress(name)
        found: dict[str, DerivativeGap] = {}
        for call in calls_of(operator):
            for step, run in STEPS.items():
                error = error_of(run, call)
                if error is None or not any(text in error for text in _LACKING):
                    continue
                with install():
                    closed = error_of(run, call) is None
                before = found.get(step, DerivativeGap(name, step, error, closed=True))
                found[step] = replace(before, closed=before.closed and closed)
        yield from found.values()


def calls_of(operator: Any) -> Iterator[Call]:
    """A few samples of an operator whose inputs move, whether torch says that it can or not."""
    if not operator.supported_dtypes("cpu"):
        return
    dtype = dtype_for(operator, "cpu")
    if not dtype.is_floating_point:
        return
    for sample in itertools.islice(samples_of(operator, "cpu", dtype), SAMPLES):
        call = call_of(operator.op, sample)
        if not call.argnums:
            moving = [i for i, tensor in enumerate(call.primals) if tensor.is_floating_point()]
            call = replace(call, argnums=tuple(moving))
        if call.argnums:
            yield call


def error_of(run: Callable[..., Any], call: Call) -> str | None:
    """The first line of what a derivative raises; None if it doesn't, or if nothing moves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(1)
            run(call.function, call)
        except Exception as error:  # noqa: BLE001  (whatever it is, its text is looked at)
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


def reason_for(operator: str) -> str:
    """Why an operator still has a gap; empty if nobody has said."""
    matching = (why for name, why in WHY_NOT.items() if fnmatch.fnmatchcase(operator, name))
    return next(matching, "")


def derivatives_page(gaps: Sequence[DerivativeGap], constant: Sequence[str] = ()) -> str:
    """The list of gaps, as Markdown."""
    closed = {gap.operator for gap in gaps if gap.closed}
    lines = [
        "# Derivatives that torch lacks",
        "",
        f"Asked of each operator of torch {torch.__version__.split('+')[0]}'s `op_db` on the CPU:",
        "its gradient, the gradient of that in reverse and in forward mode, forward mode, and",
        "`vmap`, where torch neither has a rule nor loops. Listed is what eager torch says is",
        "not implemented. *rule*: `funcaot.derivatives` has one, which is used in compiled",
        "functions and inside of `funcaot.install()`. Attention, whose eager gaps depend on the",
        "kernel that is chosen, has rules for all of them.",
        "",
        f"{len(closed)} operators have rules.",
        "",
        "| operator | derivative | now | why not |",
        "|---|---|---|---|",
    ]
    for gap in sorted(gaps, key=lambda gap: (gap.operator, gap.step)):
        why = "" if gap.closed else reason_for(gap.operator)
        lines.append(
            f"| {gap.operator} | {gap.step} | {'rule' if gap.closed else 'missing'} | {why} |"
        )
    lines += ["", "## Beyond the second order", ""]
    lines += ["Rules hold as well where torch silently computes something else:", ""]
    lines += [f"- {names}: {what}." for names, what in PUT_RIGHT.items()]
    lines += ["", "and where it raises in a derivative of a derivative:", ""]
    lines += [f"- {names}: {what}." for names, what in BEYOND.items()]
    lines += ["", "Third derivatives of `conv_transpose` with `output_padding` raise in torch."]
    if constant:
        lines += [
            "",
            "## Taken for constants",
            "",
            "Eager torch gives no gradient of these special functions, and no error. A compiled",
            "function does the same. `import funcaot.derivatives.special` gives those a derivative",
            "that have a star; of polynomials it is for a degree that is a number.",
            "",
            *(f"- `{name}`{' *' if has_special_rule(name) else ''}" for name in constant),
        ]
    return "\n".join([*lines, ""])


def has_special_rule(name: str) -> bool:
    """Whether a special function has a rule that is there for those who import it."""
    import funcaot.derivatives.special  # noqa: F401
    from funcaot.derivatives.table import derivatives

    op = name.replace("special.", "special_")
    return any(rule.op.name().startswith(f"aten::{op}") for rule in derivatives())


def constants(operators: Iterable[Any]) -> Iterator[str]:
    """Special functions that eager takes for constants, without saying so."""
    for operator in operators:
        name = full_name(operator)
        if not name.startswith("special."):
            continue
        for call in calls_of(operator):
            primals = [primal.detach().requires_grad_() for primal in call.primals]
            outputs = call.function(*primals)
            if not any(output.requires_grad for output in outputs):
                yield name
            break


def whole_page() -> str:
    """The page of the whole database, with progress on the error stream."""
    from funcaot._torch.tensors.testing import operators

    def progress(name: str) -> None:
        sys.stderr.write(f"\r\x1b[K{name}")
        sys.stderr.flush()

    found = list(find_gaps(operators(), progress))
    sys.stderr.write("\n")
    return derivatives_page(found, sorted(constants(operators())))
