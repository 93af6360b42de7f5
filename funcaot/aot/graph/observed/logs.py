"""What is logged under which name, and ``FUNCAOT_LOGS``, which shows it on stderr."""

from __future__ import annotations

import logging
import sys

from torch import fx

from funcaot import config
from funcaot._torch.tensors import trace_log
from funcaot.aot.graph.location import calling_line
from funcaot.errors import FuncaotError

__all__ = ["CODE", "EFFECTS", "GRAPHS", "RECOMPILES", "STAGES"]
__all__ += ["show_effects", "show_graph", "show_recompile"]

STAGES = logging.getLogger("funcaot.stages")
RECOMPILES = logging.getLogger("funcaot.aot.compiled")
GRAPHS = logging.getLogger("funcaot.graphs")
CODE = logging.getLogger("funcaot.code")
EFFECTS = logging.getLogger("funcaot.effects")
_BY_NAME = {
    "compile": STAGES,
    "recompiles": RECOMPILES,
    "graphs": GRAPHS,
    "code": CODE,
    "effects": EFFECTS,
}


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what ``sys.stderr`` is when something is said."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_handler = _ToStderr()
_handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
_shown: dict[str, int] = {}


def _configured(now: config.Config) -> None:
    """Show what the configuration asks for, and leave the rest as it was."""
    wanted = [name.strip() for name in now.logs.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in (*_BY_NAME, "all")]
    if unknown:
        raise FuncaotError(
            f"There is nothing to log that is called {unknown[0]!r}.",
            expected=f"names among {', '.join(_BY_NAME)}, all; by commas",
            got=repr(now.logs),
            remedy="correct FUNCAOT_LOGS, or funcaot.config's logs.",
        )
    for name, logger in _BY_NAME.items():
        if name in wanted or "all" in wanted:
            if name not in _shown:
                _shown[name] = logger.level
                logger.addHandler(_handler)
            logger.setLevel(logging.DEBUG)
        elif name in _shown:
            logger.removeHandler(_handler)
            logger.setLevel(_shown.pop(name))


config.on_change(_configured)
_configured(config.get())


def show_graph(what: str, module: fx.GraphModule) -> None:
    """Show a graph that is going to be compiled, to whoever reads it."""
    if GRAPHS.isEnabledFor(logging.DEBUG) or trace_log.is_tracing():
        text = module.print_readable(print_output=False)
        GRAPHS.debug("%s:\n%s", what, text)
        trace_log.artifact(f"graph {what}", text)


def show_effects(what: str, effects: object) -> None:
    """Show what a call does beside its graph."""
    if EFFECTS.isEnabledFor(logging.DEBUG) or trace_log.is_tracing():
        EFFECTS.debug("%s: %s", what, effects)
        trace_log.artifact(f"effects {what}", str(effects))


def show_recompile(name: str, reason: str) -> None:
    """Say why a function is captured again, with the line that called it."""
    where = calling_line()
    at = f" (called at {where})" if where else ""
    RECOMPILES.info("%s is captured again%s: %s", name, at, reason)
    trace_log.artifact(f"recompile {name}", f"{name}{at}: {reason}")
