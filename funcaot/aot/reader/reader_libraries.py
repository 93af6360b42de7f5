"""Writes what a reader compares of libraries; ``reader`` calls it after its other checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from funcaot.aot.closure.libraries.kept_as import kept_as

if TYPE_CHECKING:
    from funcaot.aot.reader.reader_source import EnvironmentWriter

__all__ = ["write_kept_as"]


def write_kept_as(writer: EnvironmentWriter) -> None:
    """Somebody may replace what libraries call that ran for the user's code.

    Raises:
        LookupError: If a module that another process went through isn't in this one.
    """
    ran = writer.environment.ran
    for part in () if ran is None else kept_as(ran.called):
        known = writer.source.constant(part, "kept_as")
        own = writer.source.constant(part.own, "library")
        condition = writer.unless_untouched(own, part.own, f"{known}()")
        writer.require(condition, f"what {part.says} holds", f"{known}.changed()")
