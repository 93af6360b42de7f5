"""Functions whose globals a walk doesn't follow before they run.

Any function of a library leads to nearly all others of it, by what they name, and hardly any of
them runs. So a walk that is told before code runs looks into its globals then, when nothing has
changed them yet. What code can reach them otherwise isn't waited for.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Set
from typing import Any

from funcaot.aot.closure.named.whole import asks_itself
from funcaot.aot.closure.ran import is_library

_HOOK = "__getattribute__"
# Code with one of these names may change globals of functions that it doesn't call, or call them
# where nobody sees it: in another thread.
_REACHING = frozenset(
    {
        _HOOK,
        "__globals__",
        "attrgetter",
        "getattr_static",
        "getclosurevars",
        "getmembers",
        "methodcaller",
        # what a frame has of globals, and the garbage collector
        "f_globals",
        "get_objects",
        "get_referents",
        "get_referrers",
        # threads
        "Thread",
        "ThreadPool",
        "ThreadPoolExecutor",
        "Timer",
        "run_in_executor",
        "start_new_thread",
        "submit",
        "to_thread",
    }
)


class Waiting:
    """The functions that wait for their code to run."""

    def __init__(self) -> None:
        """Nothing has run yet."""
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._started: set[types.CodeType] = set()
        self._all_started = False

    def waits(self, holder: object) -> bool:
        """Whether something is a function whose code hasn't run so far; then it is kept.

        What libraries such as Python's own run isn't told.
        """
        if not isinstance(holder, types.FunctionType) or self._all_started:
            return False
        code = holder.__code__
        if code in self._started or is_library(str(holder.__globals__.get("__name__"))):
            return False
        self._functions.setdefault(code, []).append(holder)
        return True

    def started(
        self, code: types.CodeType, names: Set[str], namespace: Mapping[str, Any]
    ) -> list[types.FunctionType]:
        """The functions that wait no more.

        Args:
            code: Code that is about to run.
            names: The names in it.
            namespace: Its globals.
        """
        self._started.add(code)
        reaching = names & _REACHING
        if reaching == {_HOOK} and asks_itself(code, namespace) is not None:
            # It gets attributes of an object of a class, and of nothing else.
            reaching = frozenset()
        if not reaching:
            return self._functions.pop(code, [])
        self._all_started = True
        found = [function for each in self._functions.values() for function in each]
        self._functions.clear()
        return found
