"""What is computed again wherever it is needed, and never kept: `NodeNotes` marks its nodes.

A parameter that is gathered from all ranks is the usual case: each rank keeps its part, and every
derivative gathers once more. All ranks have to choose alike, so sizes don't decide.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from torch import fx

from funcaot.base.scopes import holding

__all__ = ["computed_again", "is_computed_again", "is_marked", "what_is_kept"]

_MARK = "again"


class _ThisThread(threading.local):
    marking = False


_this_thread = _ThisThread()


def computed_again() -> AbstractContextManager[None]:
    """What is recorded inside is never kept for a derivative, but computed again."""
    return holding(_this_thread, marking=True)


def is_computed_again() -> bool:
    """Whether what is recorded now is marked so."""
    return _this_thread.marking


def is_marked(node: fx.Node) -> bool:
    """Whether a node is computed again wherever it is needed."""
    return bool(node.meta.get(_MARK))


def what_is_kept(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that a marked one is computed from and that aren't marked themselves."""
    pending, seen = [node], set[fx.Node]()
    while pending:
        found = pending.pop()
        if found in seen:
            continue
        seen.add(found)
        if is_marked(found):
            pending.extend(found.all_input_nodes)
        else:
            yield found
