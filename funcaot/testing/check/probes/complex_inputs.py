"""A row about complex numbers, for what takes them although its samples are real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from funcaot.testing.check.probes.orders import compare_reverse, plain
from funcaot.testing.check.probes.probe import PASSES, SMALLEST, WARNS, Finding, Probe
from funcaot.testing.check.probes.properties import (
    differentiable_outputs,
    pullback,
    standard_cotangents,
)
from funcaot.testing.compare import compare
from funcaot.testing.program import Program
from funcaot.testing.records import FunctionInfo, Sample

REMEDY = (
    "conjugate what multiplies the gradient (grad * x.cos().conj()), or refuse complex arguments "
    "in forward."
)


def complex_inputs(info: FunctionInfo, sample: Sample) -> Finding | None:
    """What takes complex arguments agrees with itself on real ones, and has the right gradient."""
    if not all(_is_real(value) for value in sample.values if isinstance(value, Tensor)):
        return None
    try:
        embedded = plain(info, _mapped(sample, lambda x: torch.complex(x, torch.zeros_like(x))))
        general = plain(info, _mapped(sample, _turned))
        real = plain(info, sample)
        accepted = general.run(*general.primals)
    except Exception:  # noqa: BLE001  (what doesn't take complex arguments says so in any way)
        return None
    if not accepted or not all(bool(torch.isfinite(output).all()) for output in accepted):
        return None
    message = _embedding_problem(real, embedded)
    if message is not None:
        return Finding(message, REMEDY, status=WARNS)
    found = compare_reverse(general.run, general, REMEDY)
    if found is None or found.status == PASSES:
        return found
    return replace(found, detail=f"on complex arguments {found.detail}", status=WARNS)


def _is_real(tensor: Tensor) -> bool:
    return not tensor.is_complex()


def _mapped(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    def value_of(value: object) -> object:
        if isinstance(value, Tensor) and value.is_floating_point():
            made = change(value.detach().to(torch.float64))
            return made.requires_grad_(value.requires_grad)
        return value

    values = tuple(value_of(value) for value in sample.values)
    return replace(sample, input=values[0], args=values[1:])


def _turned(tensor: Tensor) -> Tensor:
    """The numbers with imaginary parts of their own."""
    angles = torch.linspace(0.3, 1.1, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)
    return torch.complex(tensor, tensor.abs().clamp(max=1.0) * angles)


def _embedding_problem(real: Program, embedded: Program) -> str | None:
    """How a result or a gradient for ``x + 0j`` differs from that for ``x``."""
    expected = real.run(*real.primals)
    actual = embedded.run(*embedded.primals)
    difference = compare([_real_part(out) for out in actual], [_real_part(out) for out in expected])
    if difference.message is not None:
        return f"the result for x + 0j isn't that for x: {difference.message}"
    given = standard_cotangents(differentiable_outputs(real))
    _, wanted = pullback(real, given)
    carrying = differentiable_outputs(embedded)
    cotangents = [one.to(like.dtype) for one, like in zip(given, carrying, strict=True)]
    _, grads = pullback(embedded, cotangents)
    difference = compare(
        [_real_part(grad) for grad in grads], [_real_part(grad) for grad in wanted]
    )
    if difference.message is None:
        return None
    return f"the gradient for x + 0j isn't that for x: {difference.message}"


def _real_part(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.real
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


COMPLEX = (Probe("complex inputs", complex_inputs, samples=SMALLEST, compiled=False),)
