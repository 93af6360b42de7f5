"""Transforms that keep the values: functionalize and tracing."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import Tensor

from funcaot._torch.tracing.make_fx import make_fx
from funcaot.testing.program import Program
from funcaot.testing.transforms.record import Transform


def functionalize(program: Program, *, remove: str = "mutations") -> Program:
    """``torch.func.functionalize``; the oracle is the plain call."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        with warnings.catch_warnings():
            # torch's own functionalization makes a copy of copy_, which its vmap has no rule for.
            warnings.filterwarnings("ignore", "There is a performance drop.*aten::copy[.]")
            return torch.func.functionalize(program.run, remove=remove)(*primals)

    return program.then(run, program.expected)


def traced(program: Program) -> Program:
    """``make_fx`` of the program, run on the inputs it was traced with."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        return tuple(make_fx(program.run)(*primals)(*primals))

    return program.then(run, program.expected)


TRANSFORMS = (
    Transform("functionalize", functionalize),
    Transform(
        "functionalize_views",
        partial(functionalize, remove="mutations_and_views"),
        depth_one=True,
    ),
    Transform("make_fx", traced, base_only=True, depth_one=True, reproducible=False),
)
