"""A compiled function: its cache of entries and the way from a call to one of them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from funcaot._torch import tracing
from funcaot.aot.entry import Entry, make_entry
from funcaot.aot.program import Settings
from funcaot.aot.signature import Signature, read_signature
from funcaot.backends.compiler import Compiler


class CompiledFunction:
    """A function that is captured once per signature and runs compiled graphs after that.

    Attributes:
        function: The user's function.
        settings: Backend, name, lock and counters.
    """

    def __init__(self, function: Callable[..., Any], compiler: Compiler, name: str) -> None:
        """Nothing is captured before the first call."""
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.settings = Settings(compiler, name)
        self._entries: dict[Signature, list[Entry]] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything captured so far."""
        return tuple(entry for bucket in self._entries.values() for entry in bucket)

    def clear(self) -> None:
        """Forget every captured program."""
        with self.settings.lock:
            self._entries.clear()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an instance, so that a decorated method is called with its object."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; inside another capture it is inlined."""
        if tracing.is_capturing():
            return self.function(*args, **kwargs)
        signature, leaves = read_signature(self.settings.name, args, kwargs)
        found = self._find(signature)
        if found is not None:
            self.settings.statistics.cache_hits += 1
            entry, lifted = found
            return entry(leaves, lifted)
        with self.settings.lock:
            found = self._find(signature)
            if found is None:
                self.settings.statistics.cache_misses += 1
                entry = make_entry(self.function, signature, leaves, self.settings)
                self._entries.setdefault(signature, []).append(entry)
                found = (entry, entry.capture.lifted)
        entry, lifted = found
        try:
            return entry(leaves, lifted)
        finally:
            entry.capture.tape.forget_values()

    def _find(self, signature: Signature) -> tuple[Entry, Any] | None:
        for entry in self._entries.get(signature, ()):
            lifted = entry.lifted()
            if lifted is not None:
                return entry, lifted
        return None

    def __repr__(self) -> str:
        """One line."""
        statistics = self.settings.statistics
        return (
            f"<funcaot compiled {self.settings.name}: {len(self.entries)} entries, "
            f"{statistics.graphs_compiled} graphs>"
        )
