"""Properties that a transform can't show: how backward treats its cotangent, and memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from funcaot.testing.compare import compare
from funcaot.testing.derivatives import FiniteDifferences, differentiable_views
from funcaot.testing.generator import NUMERICAL_TOLERANCE, SEED
from funcaot.testing.program import Program, is_differentiable, weights_like
from funcaot.testing.transforms.reverse import autograd, in_layout

LINEARITY_TOLERANCE = (1e-5, 1e-6)


@dataclass(frozen=True)
class Finding:
    """What is wrong, and what to do."""

    detail: str
    remedy: str
    largest_error: float | None = None


def pullback(
    program: Program, cotangents: Sequence[Tensor] | None = None, *, create_graph: bool = False
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Runs forward and eager backward; returns the cotangents that were given and the gradients."""
    torch.manual_seed(SEED)
    inner = differentiable_views([primal.detach() for primal in program.primals], program.argnums)
    outputs = [out for out in program.run(*inner) if out.requires_grad]
    given = list(cotangents) if cotangents is not None else standard_cotangents(outputs)
    if not outputs:
        return (), tuple(torch.zeros_like(inner[index]) for index in program.argnums)
    grads = torch.autograd.grad(
        outputs,
        [inner[index] for index in program.argnums],
        given,
        materialize_grads=True,
        create_graph=create_graph,
    )
    return tuple(given), grads


def standard_cotangents(outputs: Sequence[Tensor], phase: float = 0.2) -> list[Tensor]:
    """Unequal numbers in the shape of each output."""
    return [weights_like(output.detach(), phase) for output in outputs]


def differentiable_outputs(program: Program) -> list[Tensor]:
    """The outputs that carry a gradient, computed once."""
    torch.manual_seed(SEED)
    inner = differentiable_views([primal.detach() for primal in program.primals], program.argnums)
    return [out.detach() for out in program.run(*inner) if out.requires_grad]


def any_layout(program: Program) -> Finding | None:
    """Backward gives the same result for cotangents of other strides."""
    outputs = differentiable_outputs(program)
    cotangents = standard_cotangents(outputs)
    _, expected = pullback(program, cotangents)
    remedy = "call grad_output.contiguous(), or use reshape instead of view in backward."
    ones = [torch.ones_like(output) for output in outputs]
    expanded = [torch.ones((), dtype=one.dtype).expand(one.shape) for one in ones]
    trials = (
        ("permuted", [in_layout(cotangent, "strided") for cotangent in cotangents], expected),
        ("expanded, as sum() sends it", expanded, None),
    )
    for name, given, wanted in trials:
        if wanted is None:
            _, wanted = pullback(program, ones)
        try:
            _, actual = pullback(program, given)
        except Exception as error:  # noqa: BLE001  (any exception of a user's backward)
            detail = f"backward raises for a cotangent that is {name}: {first_line(error)}"
            return Finding(detail, remedy)
        difference = compare(actual, wanted)
        if difference.message:
            detail = f"the gradient differs for a cotangent that is {name}: {difference.message}"
            return Finding(detail, remedy, difference.largest)
    return None


def keeps_cotangent(program: Program) -> Finding | None:
    """Backward leaves its grad_output as it was."""
    cotangents = standard_cotangents(differentiable_outputs(program))
    before = [cotangent.clone() for cotangent in cotangents]
    given, _ = pullback(program, cotangents)
    difference = compare(given, before)
    if difference.message is None:
        return None
    return Finding(
        f"backward writes into its grad_output ({difference.message}); autograd may use it again",
        "work on grad_output.clone(), or use the out-of-place operation.",
        difference.largest,
    )


def keeps_inputs(program: Program) -> Finding | None:
    """Forward and backward leave the inputs and the saved tensors as they were."""
    torch.manual_seed(SEED)
    before = [primal.clone() for primal in program.primals]
    program.run(*program.primals)
    difference = compare(program.primals, before)
    if difference.message is not None:
        return Finding(
            f"forward changes an input without ctx.mark_dirty ({difference.message})",
            "declare it by ctx.mark_dirty, or work on a clone.",
            difference.largest,
        )
    pullback(program)
    difference = compare(program.primals, before)
    if difference.message is None:
        return None
    return Finding(
        f"backward changes an input ({difference.message})",
        "work on a clone of what was saved.",
        difference.largest,
    )


def is_linear(program: Program) -> Finding | None:
    """Backward of a combination of cotangents is the combination of backwards."""
    outputs = differentiable_outputs(program)
    first, second = standard_cotangents(outputs), standard_cotangents(outputs, 1.7)
    combined = [2 * left - 30 * right for left, right in zip(first, second, strict=True)]
    grads = [pullback(program, given)[1] for given in (first, second, combined)]
    expected = [2 * left - 30 * right for left, right in zip(grads[0], grads[1], strict=True)]
    difference = compare(grads[2], expected, LINEARITY_TOLERANCE)
    if difference.message is None:
        return None
    return Finding(
        f"backward is not linear in its cotangent ({difference.message})",
        "fine for clipping and the like, but no jvp rule can be generated from it, and Jacobians "
        "are not Jacobians: write jvp by hand if you need one.",
        difference.largest,
    )


def frees_memory(program: Program) -> Finding | None:
    """Nothing keeps the outputs alive once the caller has dropped them."""
    inner = differentiable_views([primal.detach() for primal in program.primals], program.argnums)
    program.run(*inner)  # caches that fill on the first call are not a leak
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        outputs = program.run(*inner)
        alive = [weakref.ref(output) for output in outputs]
        del outputs
        kept = sum(reference() is not None for reference in alive)
    finally:
        if was_enabled:
            gc.enable()
    if not kept:
        return None
    gc.collect()
    cycle = all(reference() is None for reference in alive)
    how = "a reference cycle (an output kept on ctx)" if cycle else "something global"
    return Finding(
        f"{kept} output(s) stay alive after the caller dropped them: {how}",
        "use ctx.save_for_backward(output) instead of ctx.name = output.",
    )


def keeps_results(program: Program) -> Finding | None:
    """A second call changes neither the results nor the gradients of the first."""
    torch.manual_seed(SEED)
    inner = differentiable_views([primal.detach() for primal in program.primals], program.argnums)
    outputs = program.run(*inner)
    before = [output.detach().clone() for output in outputs]
    reached = [output for output in outputs if output.requires_grad]
    _, expected = pullback(program)
    others = [
        primal * 0.5 if is_differentiable(primal) else primal.clone() for primal in program.primals
    ]
    program.run(*differentiable_views(others, program.argnums))
    difference = compare([output.detach() for output in outputs], before)
    if difference.message is None and reached:
        grads = torch.autograd.grad(
            reached,
            [inner[index] for index in program.argnums],
            standard_cotangents(reached),
            materialize_grads=True,
        )
        difference = compare(grads, expected)
    if difference.message is None:
        return None
    return Finding(
        f"a second call changes the first one's result or gradient ({difference.message})",
        "keep state on ctx, not on the class or in a shared buffer.",
        difference.largest,
    )


def second_order(program: Program) -> Finding | None:
    """The derivative of backward is the derivative of what backward computes."""
    gradient = autograd(program)
    # Finite differences of the gradient itself: this holds for odd rules as well.
    measured = autograd(replace(gradient, expected=gradient.run, derivatives=FiniteDifferences()))
    torch.manual_seed(SEED)
    difference = compare(
        measured.run(*program.primals), measured.expected(*program.primals), NUMERICAL_TOLERANCE
    )
    if difference.message is None:
        return None
    return Finding(
        f"the second derivative is not the derivative of the first ({difference.message})",
        "in backward, use saved inputs and outputs (not detached, not intermediates of forward), "
        "or decorate it with once_differentiable so that nobody trusts it.",
        difference.largest,
    )


def first_line(error: BaseException) -> str:
    """The type and the first line of an exception."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


PROPERTIES: tuple[tuple[str, Callable[[Program], Finding | None]], ...] = (
    ("inputs unchanged", keeps_inputs),
    ("calls independent", keeps_results),
    ("any cotangent layout", any_layout),
    ("cotangent unchanged", keeps_cotangent),
    ("linear backward", is_linear),
    ("second order", second_order),
    ("memory freed", frees_memory),
)
