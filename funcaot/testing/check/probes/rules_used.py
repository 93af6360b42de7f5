"""A row that asserts: the rules that were written by hand are the ones that ran.

A result can be right although a rule wasn't asked: a wrapper goes another way under a transform, or
a rule was generated in its place. Then every other row says nothing about the rule.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

from funcaot.classes.traits import origin_of
from funcaot.testing.check.probes.modes import in_forward
from funcaot.testing.check.probes.orders import tangents_of
from funcaot.testing.check.probes.probe import SMALLEST, Finding, Probe
from funcaot.testing.check.probes.properties import pullback
from funcaot.testing.derivatives import FiniteDifferences, differentiable_views
from funcaot.testing.generator import seed
from funcaot.testing.program import Program, program_of
from funcaot.testing.records import FunctionInfo, Sample

# Classes of these make their rules themselves.
NOT_BY_HAND = ("torch.", "funcaot.", "_funcaot")
SHOWN = "funcaot.testing."


class CodesRun:
    """Notes which functions run in this thread."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def __enter__(self) -> CodesRun:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.codes.add(frame.f_code)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sys.setprofile(self._before)


def rules_used(info: FunctionInfo, sample: Sample) -> Finding | None:
    """Each rule that is written by hand runs under the transform that it is for."""
    program = program_of(info, sample, FiniteDifferences())
    for function in reached_functions(info, sample):
        for rule, code in rules_by_hand(function).items():
            try:
                with CodesRun() as seen:
                    TRIALS[rule](program)
            except Exception:  # noqa: BLE001  (the row of that transform says what was raised)
                continue
            if code not in seen.codes:
                return Finding(
                    f"{rule} of {function.__name__} is written by hand and didn't run under "
                    f"{TRANSFORMS[rule]}: something else was computed, so the other rows say "
                    "nothing about it",
                    "see who takes the other way (a shortcut in a wrapper, a subclass, a generated "
                    "rule), or delete the rule.",
                )
    return None


def reached_functions(info: FunctionInfo, sample: Sample) -> list[type]:
    """The Function class of the record, or those that a call leaves in autograd's graph."""
    if info.function is not None:
        return [info.function]
    plain = getattr(info.op, "function", info.op)  # of a compiled callable
    program = program_of(replace(info, op=plain), sample, FiniteDifferences())
    outputs = program.run(*differentiable_views(program.primals, program.argnums))
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    found: dict[type, None] = {}
    known = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        waiting += [following for following, _ in node.next_functions]
        function = getattr(node, "_forward_cls", None)
        if function is not None and is_by_hand(origin_of(function)):
            found[origin_of(function)] = None
    return list(found)


def is_by_hand(function: type) -> bool:
    """Whether somebody wrote the class, rather than torch or funcaot."""
    module = f"{function.__module__}."
    return module.startswith(SHOWN) or not module.startswith(NOT_BY_HAND)


def rules_by_hand(function: type) -> dict[str, CodeType]:
    """The code of each rule that the class defines, by its name."""
    found = {}
    for rule in TRIALS:
        written = getattr(function, rule, None)
        if written is None or written is getattr(torch.autograd.Function, rule, None):
            continue
        code = getattr(inspect.unwrap(written), "__code__", None)
        if code is not None:
            found[rule] = code
    return found


def _under_autograd(program: Program) -> None:
    pullback(program)


def _under_jvp(program: Program) -> None:
    seed()
    tangents = tangents_of(program, relative=False)
    in_forward(program.run, program.argnums, tangents)(*program.primals)


def _under_vmap(program: Program) -> None:
    seed()
    batched = [torch.stack([primal, primal]) for primal in program.primals]
    torch.func.vmap(program.run, randomness="different")(*batched)


TRIALS: dict[str, Callable[[Program], None]] = {
    "backward": _under_autograd,
    "vjp": _under_autograd,
    "jvp": _under_jvp,
    "vmap": _under_vmap,
}
TRANSFORMS = {"backward": "autograd", "vjp": "autograd", "jvp": "jvp", "vmap": "vmap"}
RULES_USED = (Probe("rules used", rules_used, frozenset(), SMALLEST, rule="forward", fresh=True),)
