"""Who asks about open sizes: ``dims`` names the op and the user's line in a refusal."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

from torch import fx

from funcaot._torch.autograd.autograd import running_backward
from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.capture.handlers.call import Call
from funcaot.aot.graph import graphs
from funcaot.aot.graph.location import Location, calling_line
from funcaot.base.tracebacks import is_users_file

__all__ = ["Answers", "failing_at", "lines_of"]

# These read a size for another op.
_SHOWING = {"alias", "detach", "size", "sym_size", "sym_stride", "sym_numel"}
_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")


class _Asked(NamedTuple):
    """An op, whether its derivative asked, and the innermost line of the user's."""

    op: str
    in_derivative: bool
    line: Location | None


class Answers(dict[Any, Any]):
    """What a trace assumes about sizes: each question with its answer, and who asked it."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        super().__init__()
        self._asked: dict[Any, _Asked] = {}

    def __setitem__(self, question: Any, answer: Any) -> None:
        """Keep an answer and who asks."""
        if question not in self:
            self._asked[question] = _asking()
        super().__setitem__(question, answer)

    def said(self, question: Any, lines: Mapping[str, Location]) -> str:
        """Where a question was asked, in words; ``lines`` says where ops were called."""
        asked = self._asked.get(question)
        if asked is None:
            return ""
        line = lines.get(asked.op, asked.line)
        at = f"at {line}" if line is not None else ""
        if not asked.op:
            return at
        op = f"in the derivative of {asked.op}" if asked.in_derivative else f"in {asked.op}"
        return f"{op} {at}".rstrip()


def lines_of(graph: fx.Graph) -> dict[str, Location]:
    """Where the user called each op of a tape, if that is one place."""
    found: dict[str, set[Location]] = {}
    for node in graph.nodes:
        op, line = graphs.op_of(node), node.meta.get("source")
        if isinstance(op, OpOverload) and line is not None:
            found.setdefault(_name(op), set()).add(line)
    return {name: next(iter(lines)) for name, lines in found.items() if len(lines) == 1}


def _name(op: OpOverload) -> str:
    return str(op.overloadpacket.__name__).strip("_")


def _asking() -> _Asked:
    line = calling_line()
    node = running_backward()
    if node.endswith("Backward0"):
        words = _CAPITALS.sub("_", node.removesuffix("Backward0")).lower()
        return _Asked(words, True, line)
    return _Asked(_running_op(), False, line)


def failing_at(error: BaseException) -> str:
    """Which function of torch failed and at which line of the user's, in words after a space."""
    name, line = "", None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if is_users_file(frame.f_code.co_filename):
            name, line = "", Location(frame.f_code.co_filename, trace.tb_lineno)
        elif line is not None:
            name = name or _called(frame.f_locals)
        trace = trace.tb_next
    if line is None:
        return ""
    return f" in {name} at {line}" if name else f" at {line}"


def _called(names: Mapping[str, Any]) -> str:
    """The function of torch that a capture treats in a frame; empty for others."""
    call = names.get("call")
    return call.name if isinstance(call, Call) and not call.name.startswith("__") else ""


def _running_op() -> str:
    """The op that the user's code called, or that runs in a derivative."""
    found = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        own = frame.f_locals
        for name in ("func", "op", "self"):
            op = own.get(name)
            if isinstance(op, OpOverload) and _name(op) not in _SHOWING:
                found = _name(op)
        found = _called(own) or found
        frame = frame.f_back
    return found
