"""Calls of a function that reaches tensors whose sizes change; a compiled function sends them here.

The sizes of arguments stay open; those of what a function closes over, or finds in an object that
it is given, don't. So one program is given these tensors as arguments beside the user's. The
function doesn't see them there: it finds them where they always were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from funcaot._torch.levels import functorch
from funcaot.aot.graph.observed.logs import show_recompile
from funcaot.aot.graph.settings import Settings
from funcaot.aot.reader.reached_tensors import ReachedTensors
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.generated.fast_call import MISS
from funcaot.aot.runtime.transform_stacks import NotCapturedError
from funcaot.aot.signature.numbers import number_of
from funcaot.aot.subclasses.structure import is_wrapper

if TYPE_CHECKING:
    from funcaot.aot.runtime.compiled import CompiledFunction

_KEPT = 8

Make = Callable[["ReachingFunction", Settings], "CompiledFunction"]


class ReachingFunction:
    """The function, given some of the tensors that it reaches by itself.

    Attributes:
        function: The user's function.
        funcaot_reaches: How many tensors it is given.
    """

    def __init__(self, function: Callable[..., Any], count: int) -> None:
        """Wrap it."""
        self.function, self.funcaot_reaches = function, count

    def __call__(self, reached: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Run it; only a capture does."""
        return self.function(*args, **kwargs)


class _Grown:
    """The tensors that a program reached, and those among them whose sizes were others since.

    Attributes:
        program: Is given those that had other sizes.
        dims: For each of these, which ones.
        arguments: For each leaf of the arguments, which of its sizes were others.
        numbers: Which of these leaves are numbers that were others.
    """

    def __init__(self, tensors: ReachedTensors, leaves: Sequence[Any]) -> None:
        """Nothing has changed yet."""
        self.program: CompiledFunction | None = None
        self.dims: list[frozenset[int]] = []
        self.arguments = [frozenset[int]()] * len(leaves)
        self.numbers: set[int] = set()
        self._tensors, self._leaves = tensors, leaves
        self._changed = [frozenset[int]()] * len(tensors.shapes)

    def compare(self, leaves: Sequence[Any]) -> None:
        """Note what of a call's arguments is another than it was."""
        if len(leaves) != len(self._leaves):
            self.arguments = [frozenset[int]()] * len(leaves)
            return
        for at, (leaf, before) in enumerate(zip(leaves, self._leaves, strict=True)):
            if isinstance(leaf, torch.Tensor):
                self.arguments[at] |= _other_sizes(leaf, before)
            elif type(leaf) in {int, float} and number_of(before) != leaf:
                self.numbers.add(at)

    def find(self, function: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        """The tensors of a call that are to be arguments; none if other things are there."""
        found = self._tensors.find(function, leaves)
        if found is None:
            return []
        before = list(map(bool, self._changed))
        for at, (tensor, shape) in enumerate(zip(found, self._tensors.shapes, strict=True)):
            now = frozenset(d for d, size in enumerate(shape) if tensor.shape[d] != size)
            self._changed[at] |= now
        if list(map(bool, self._changed)) != before:
            self.program = None
        self.dims = [dims for dims in self._changed if dims]
        return [tensor for tensor, dims in zip(found, self._changed, strict=True) if dims]


class GrownCalls:
    """The programs of one function that are given tensors which it reaches.

    Attributes:
        read: Which leaves of its arguments were read off tensors.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings, make: Make) -> None:
        """Nothing is captured yet.

        Args:
            function: The user's function.
            settings: Its settings.
            make: Makes the program of a function.
        """
        self._function, self._settings, self._make = function, settings, make
        self._known: list[_Grown] = []
        self._is_closed = settings.dynamic is False
        self.read = range(0)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What was captured."""
        programs = [known.program for known in self._known if known.program is not None]
        return tuple(entry for program in programs for entry in program.entries)

    def note(self, entry: Entry) -> None:
        """Remember what a program reaches; callers hold the function's lock."""
        reader = entry.forward.reader
        tensors = None if reader is None else reader.reached
        if tensors is not None and not self._is_closed:
            self._known = [*self._known, _Grown(tensors, entry.signature.leaves)][-_KEPT:]

    def close(self) -> None:
        """Leave nothing open: the names of arguments that stay static mean those of the user."""
        self._is_closed, self._known = True, []

    def clear(self) -> None:
        """Forget everything."""
        self._known = []

    def run(
        self,
        leaves: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        why: Callable[[], str],
    ) -> Any:
        """Run a call that no program fits, if that is because of such sizes.

        Args:
            leaves: Leaves of the call.
            args: Its arguments.
            kwargs: Its keywords.
            why: Says why none fits.

        Returns:
            What the function returns; `MISS` if it is to be captured as it is.
        """
        if not self._known or functorch.under_transforms(leaves):
            return MISS
        with self._settings.lock:
            known, tensors = self._found(leaves)
            if known is None:
                return MISS
            if known.program is None:
                function = ReachingFunction(self._function, len(tensors))
                known.program = self._make(function, self._settings)
            program, before = known.program, len(tensors)
            known.compare(leaves)
            program.open_dimensions([*known.dims, *known.arguments])
            read = range(before + self.read.start, before + self.read.stop)
            program.open_together(read, [before + at for at in known.numbers])
        entries = len(program.entries)
        try:
            result = program(tensors, *args, **kwargs)
        except NotCapturedError:
            return MISS
        made = program.entries[entries:]
        if made and not made[-1].reason:
            made[-1].reason = why()
            show_recompile(self._settings.name, made[-1].reason)
        return result

    def _found(self, leaves: Sequence[Any]) -> tuple[_Grown | None, list[Any]]:
        for known in self._known:
            tensors = known.find(self._function, leaves)
            if tensors:
                return known, tensors
        return None, []


def _other_sizes(tensor: torch.Tensor, before: Any) -> frozenset[int]:
    """The dimensions in which a tensor has another size than one had before."""
    shape = getattr(before, "shape", None)
    if shape is None or len(shape) != tensor.dim() or is_wrapper(tensor):
        return frozenset()
    return frozenset(d for d, size in enumerate(shape) if tensor.shape[d] != size)
