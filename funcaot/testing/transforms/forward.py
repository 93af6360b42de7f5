"""Forward mode: ``torch.func.jvp``, ``linearize`` and dual numbers."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

from funcaot.testing.program import Program, TensorFunction, weights_like
from funcaot.testing.transforms.record import Transform

FORWARD = frozenset({"forward_ad"})


def along_tangents(program: Program) -> tuple[tuple[Tensor, ...], TensorFunction]:
    """The primals followed by tangents, and the oracle that takes both."""
    tangents = tuple(weights_like(program.primals[index], 0.9) for index in program.argnums)
    count = len(program.primals)

    def expected(*arguments: Tensor) -> tuple[Tensor, ...]:
        outputs, results = program.derivatives.jvp(
            program.expected, arguments[:count], program.argnums, arguments[count:]
        )
        return (*outputs, *floating(outputs, results))

    return (*program.primals, *tangents), expected


def floating(outputs: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tangents of outputs whose dtype has one."""
    return tuple(
        tangent
        for output, tangent in zip(outputs, tangents, strict=True)
        if output.is_floating_point() or output.is_complex()
    )


def jvp(program: Program) -> Program:
    """``torch.func.jvp``; the tangents are further inputs."""
    arguments, expected = along_tangents(program)
    count = len(program.primals)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        primals, tangents = given[:count], given[count:]
        active = tuple(primals[index] for index in program.argnums)
        outputs, results = torch.func.jvp(fixing_others(program, primals), active, tuple(tangents))
        return (*outputs, *floating(outputs, results))

    return program.then(run, expected, arguments)


def linearize(program: Program) -> Program:
    """``torch.func.linearize``, whose linear function is traced."""
    arguments, expected = along_tangents(program)
    count = len(program.primals)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        primals, tangents = given[:count], given[count:]
        active = tuple(primals[index] for index in program.argnums)
        with warnings.catch_warnings():
            # torch's own tracing of the linear function warns about constants that it lifts.
            warnings.filterwarnings("ignore", "Attempted to insert a get_attr Node")
            outputs, pushforward = torch.func.linearize(fixing_others(program, primals), *active)
            return (*outputs, *floating(outputs, pushforward(*tangents)))

    return program.then(run, expected, arguments)


def fixing_others(program: Program, primals: tuple[Tensor, ...]) -> TensorFunction:
    """The program as a function of the differentiated primals only."""

    def function(*active: Tensor) -> tuple[Tensor, ...]:
        filled = list(primals)
        for index, value in zip(program.argnums, active, strict=True):
            filled[index] = value
        return program.run(*filled)

    return function


def dual(program: Program) -> Program:
    """Dual numbers of ``torch.autograd.forward_ad``, without functorch."""
    arguments, expected = along_tangents(program)
    count = len(program.primals)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        primals, tangents = list(given[:count]), given[count:]
        with forward_ad.dual_level():
            for index, tangent in zip(program.argnums, tangents, strict=True):
                primals[index] = forward_ad.make_dual(primals[index], tangent)
            pairs = [forward_ad.unpack_dual(output) for output in program.run(*primals)]
        outputs = tuple(pair.primal for pair in pairs)
        results = tuple(
            torch.zeros_like(pair.primal) if pair.tangent is None else pair.tangent
            for pair in pairs
        )
        return (*outputs, *floating(outputs, results))

    return program.then(run, expected, arguments)


TRANSFORMS = (
    Transform("jvp", jvp, FORWARD, order=1, linear=True),
    Transform(
        "linearize", linearize, FORWARD, order=1, linear=True, depth_one=True, reproducible=False
    ),
    Transform("dual", dual, FORWARD, order=1, base_only=True, linear=True),
)
