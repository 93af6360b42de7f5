"""Properties that a transform can't show: how backward treats its cotangent, and memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from funcaot.testing.check.probes.probe import SMALLEST, UNSUPPORTED, Finding, Probe
from funcaot.testing.check.probes.slopes import apart
from funcaot.testing.compare import compare
from funcaot.testing.derivatives import FiniteDifferences, differentiable_views
from funcaot.testing.generator import seed
from funcaot.testing.program import (
    Program,
    detached,
    is_differentiable,
    program_of,
    weights_like,
)
from funcaot.testing.records import FunctionInfo, Sample
from funcaot.testing.transforms.reverse import in_layout

LINEARITY_TOLERANCE = (1e-5, 1e-6)
# Powers of two, so that nothing is rounded: where a backward clips, or drops what is small.
SCALES = (2.0**14, 2.0**-14)


def pullback(
    program: Program, cotangents: Sequence[Tensor] | None = None, *, create_graph: bool = False
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Runs forward and eager backward; returns the cotangents that were given and the gradients."""
    seed()
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
    seed()
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


def any_input_layout(program: Program) -> Finding | None:
    """The results and gradients are the same for inputs of other strides."""
    remedy = "use reshape instead of view, and ask a tensor for its strides, never its storage."
    _, expected = pullback(program)
    wanted = [*detached(run_seeded(program)), *expected]
    turned = [in_layout(primal, "strided") for primal in program.primals]
    other = replace(program, primals=tuple(turned))
    try:
        _, grads = pullback(other)
        found = [*detached(run_seeded(other)), *grads]
    except Exception as error:  # noqa: BLE001  (any exception of user code)
        return Finding(f"it raises for inputs that are permuted: {first_line(error)}", remedy)
    difference = compare(found, wanted)
    if difference.message is None:
        return None
    detail = f"inputs of other strides give another result or gradient: {difference.message}"
    return Finding(detail, remedy, difference.largest)


def run_seeded(program: Program) -> tuple[Tensor, ...]:
    """The outputs on copies of the primals."""
    seed()
    with torch.no_grad():
        return program.run(*[apart(primal) for primal in program.primals])


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
    seed()
    before = [primal.clone() for primal in program.primals]
    versions = [primal._version for primal in program.primals]
    program.run(*program.primals)
    difference = compare(program.primals, before)
    written = versions != [primal._version for primal in program.primals]
    if written or difference.message is not None:
        same = "what it writes is what was there, for these values"
        return Finding(
            f"forward changes an input without ctx.mark_dirty ({difference.message or same})",
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
    for scale in SCALES if difference.message is None else ():
        _, scaled = pullback(program, [cotangent * scale for cotangent in first])
        difference = compare([grad / scale for grad in scaled], grads[0], LINEARITY_TOLERANCE)
        if difference.message is not None:
            break
    if difference.message is None:
        return None
    return Finding(
        f"backward is not linear in its cotangent ({difference.message})",
        "fine for clipping and the like, but no jvp rule can be generated from it, and Jacobians "
        "are not Jacobians: write jvp by hand if you need one.",
        difference.largest,
        # Meant so in a clipped gradient: it limits what can be generated, no more.
        UNSUPPORTED,
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
    seed()
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


def first_line(error: BaseException) -> str:
    """The type and the first line of an exception."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def on_program(
    probe: Callable[[Program], Finding | None],
) -> Callable[[FunctionInfo, Sample], Finding | None]:
    """A probe of what takes a program; no oracle is asked."""
    return lambda info, sample: probe(program_of(info, sample, FiniteDifferences()))


PROPERTIES = (
    Probe("inputs unchanged", on_program(keeps_inputs)),
    Probe("calls independent", on_program(keeps_results)),
    Probe("any input layout", on_program(any_input_layout)),
    Probe("any cotangent layout", on_program(any_layout)),
    Probe("cotangent unchanged", on_program(keeps_cotangent)),
    Probe("linear backward", on_program(is_linear)),
)
MEMORY = (Probe("memory freed", on_program(frees_memory), samples=SMALLEST, compiled=False),)
