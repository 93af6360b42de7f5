"""Outputs that are views of wrappers, or like them: how the epilogue makes them again.

``aliases`` asks for each output, and ``wrappers`` to know whose memory an output has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from funcaot._torch.autograd import autograd
from funcaot._torch.tensors.sizes.ragged import is_ragged, number_of
from funcaot._torch.tensors.sizes.shapes import is_expression, value_at
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture
from funcaot.aot.capture.stale_views import Change, stale_view
from funcaot.aot.effects.around import keep_histories, made_around
from funcaot.aot.effects.effects import Output
from funcaot.aot.effects.jagged import Finder, jagged_again
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.subclasses.identity import objects_inside
from funcaot.aot.subclasses.structure import metadata_without_grad, paths_inside
from funcaot.aot.tape.memory import views
from funcaot.aot.tape.wrappers import is_wrapper, leaves_of

__all__ = ["base_of", "detached_from", "made_again", "storages_of"]


@dataclass(frozen=True, eq=False)
class ViewAgain:
    """A view of a wrapper, or out of one, made again by what autograd knows of it.

    Attributes:
        traced: The tape's view.
        recorded: Whether it was made with grad mode on.
        turned: Changes of the wrapper's shape that came after the view, the last one first.
        given: Tensors of the tape that the view's ops were given (offsets of a jagged one).
        sizes: The open sizes of the call that makes it again, if there are any.
    """

    traced: torch.Tensor
    recorded: bool
    turned: tuple[Change, ...] = ()
    given: tuple[torch.Tensor, ...] = ()
    sizes: Mapping[Any, int] | None = None

    def at_sizes(self, sizes: Mapping[Any, int]) -> ViewAgain:
        """The view for a call of some open sizes."""
        return replace(self, sizes=dict(sizes))

    def __call__(self, base: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        """The same view of another wrapper, with what its ops are given in this call."""
        known = {id(traced): now for traced, now in zip(self.given, given, strict=True)}
        with torch.set_grad_enabled(self.recorded):
            for change in self.turned:
                base = change.undone(base)  # type: ignore[assignment] (it was undone before)
            return autograd.view_again(
                self.traced,
                base,
                partial(self._number, base),
                (lambda each: known.get(id(each), each)) if known else None,
            )

    def _number(self, base: torch.Tensor, number: Any) -> Any:
        """A number of the traced view in this call."""
        if is_ragged(number):
            sizes = zip(self.traced._base.shape, base.shape, strict=True)  # type: ignore[union-attr]
            return next((real for traced, real in sizes if is_ragged(traced)), number)
        found = number_of(number)
        return value_at(found, self.sizes or {}) if is_expression(found) else number

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"view {list(self.traced.shape)}"


@dataclass(frozen=True)
class DetachedAgain:
    """A detached wrapper, or its ``data``, which counts writes by itself."""

    counts_alone: bool

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The same of another wrapper."""
        return base.data if self.counts_alone else base.detach()

    def __str__(self) -> str:
        """As the plan shows it."""
        return "data" if self.counts_alone else "detach()"


@dataclass(frozen=True)
class WrappedAgain:
    """A wrapper of the same class and metadata around the same tensors."""

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The same of another wrapper."""
        structure = spec_of(base).structure
        if structure is None:
            raise TypeError(f"a {type(base).__name__} isn't a wrapper")
        return structure.made_of(structure.parts(base), tuple(base.shape), tuple(base.stride()))

    def __str__(self) -> str:
        """As the plan shows it."""
        return "wrapped again"


def made_again(finder: Finder, value: torch.Tensor) -> Output | None:
    """How the epilogue makes a view of a wrapper that comes in or goes out, or one like it.

    Args:
        finder: Finds where outputs come from.
        value: What the function returns.

    Returns:
        None if it is neither, if a Function made it, or if making it again wouldn't show what
        happened to memory of its own.
    """
    base, capture = value._base, finder.capture
    if base is None:
        start = made_around(finder, value)
        return _detached_again(finder, value) if start is None else Output(origin=start)
    if is_wrapper(value) and not is_wrapper(base):
        return jagged_again(finder, value) or keep_histories(finder, value)
    base = base_of(capture, value, [part for _, part in finder.wrapped.parts])
    if base is None:
        return None
    recorded = autograd.creation_meta(value) != autograd.CreationMeta.NO_GRAD_MODE
    view: Any = _piece_of(base, value)
    beside: tuple[Origin, ...] = ()
    if view is None:
        given = _given_to(finder, base, value)
        view = ViewAgain(value, recorded, _later(finder, base, value), given)
        beside = tuple(map(finder.origin, given))
    start = _start_of(finder, base)
    if beside or start.parent is not None:
        return Output(origin=replace(start, view=view, beside=beside))
    return Output(source=start.source, result=start.result, view=view)


def _start_of(finder: Finder, base: torch.Tensor) -> Origin:
    """Where the epilogue finds the wrapper that a view is made of: a new object for each view."""
    for index, slot in enumerate(finder.capture.inputs):
        if slot.tensor is base:
            return Origin(source=index)
    for start, part in finder.wrapped.parts:
        if part is base:
            return Origin(parent=start)
    around = made_around(finder, base)
    return Origin(result=finder.results.of(base)) if around is None else Origin(parent=around)


def _given_to(finder: Finder, base: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors of the tape that the ops of a view were given beside what they view."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        on_tape = finder.capture.tape.node_of(tensor) is not None
        if on_tape and not any(tensor is each for each in found):
            found.append(tensor)
        return tensor

    with contextlib.suppress(RuntimeError, ValueError, IndexError), torch.no_grad():
        autograd.view_again(value, base, tensor=note)
    return tuple(found)


def _later(finder: Finder, base: torch.Tensor, value: torch.Tensor) -> tuple[Change, ...]:
    """The changes of a wrapper's shape in place that came after a view of it, the last one first.

    Raises:
        UnsupportedError: If autograd knows the view, whose gradient eager can't give then, or if a
            change can't be undone.
    """
    changes = finder.capture.events.history.changes.get(id(base), ())
    found: list[Change] = []
    for change in (*reversed(changes), None):
        if not changes or _is_that_view(base, value):
            return tuple(found)
        undone = None if change is None or value.requires_grad else change.undone(base)
        if change is None or undone is None:
            break
        base = undone
        found.append(change)
    raise stale_view(value, finder.name)


def _is_that_view(base: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a view made again of a wrapper is the one that there is."""
    try:
        again = autograd.view_again(value, base)
    except (RuntimeError, ValueError, IndexError):
        return False
    looks = [[_place(part) for part in (each, *leaves_of(each))] for each in (again, value)]
    return looks[0] == looks[1]


def _place(part: torch.Tensor) -> tuple[Any, ...]:
    return tuple(part.shape), part.stride(), 0 if is_wrapper(part) else part.storage_offset()


def _piece_of(base: torch.Tensor, value: torch.Tensor) -> views.View | None:
    """The view, if it is a piece of a ``split``, which the epilogue makes with the others.

    The formula of its gradient needs those of all pieces where a size is ragged.
    """
    node = value.grad_fn
    if node is None or node.name() != "SplitBackward0":
        return None
    parent = node.next_functions[0][0]
    size, dim = node._saved_split_size, node._saved_dim  # type: ignore[attr-defined]
    if get_gradient_edge(base).node is not parent or not isinstance(size, int):
        return None
    dim = dim if dim < value.dim() else dim - 2**64  # It is saved without its sign.
    step = views.ViewStep(torch.ops.aten.split.Tensor, (size, dim), (), value.output_nr)
    return views.View((step,), recorded=True, several=True)


def base_of(
    capture: Capture, value: torch.Tensor, parts: Sequence[torch.Tensor] = ()
) -> torch.Tensor | None:
    """The wrapper that an output is made again as a view of.

    Args:
        capture: What the function did.
        value: What it returns.
        parts: What is inside of its arguments, and may be a wrapper, too.

    Returns:
        None if it is a view of no wrapper, if a Function made it, if making it again wouldn't show
        what happened to memory of its own, or if nobody else has its memory.
    """
    base, kinds = value._base, autograd.CreationMeta
    if base is None or not is_wrapper(base) or _has_memory_to_keep(capture, value, base):
        return None
    if autograd.creation_meta(value) in (kinds.IN_CUSTOM_FUNCTION, kinds.INFERENCE_MODE):
        return None
    others = [v for v in capture.outputs if isinstance(v, torch.Tensor) and v is not value]
    if any(base is each for each in (*others, *(slot.tensor for slot in capture.inputs), *parts)):
        return base
    known = {key for key, _ in storages_of(base)}
    shown = any(key in known for other in others for key, _ in storages_of(other))
    return base if shown else None


def _has_memory_to_keep(capture: Capture, value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view holds memory that its base doesn't, written to or shown by other outputs.

    A class may compute what stands for a view, as quantized weights do.
    """
    known = {key for key, _ in storages_of(base)}
    own = {key: part for key, part in storages_of(value) if key not in known}
    if not own:
        return False
    others = [v for v in capture.outputs if isinstance(v, torch.Tensor) and v is not value]
    shown = {key for other in others for key, _ in storages_of(other)}
    return any(key in shown or tracing.has_data_mutation(own[key]) for key in own)


def _detached_again(finder: Finder, value: torch.Tensor) -> Output | None:
    """A wrapper that is another one but for autograd: detached, or made of the same tensors."""
    if not is_wrapper(value) or value.requires_grad:
        return None
    capture = finder.capture
    for index, slot in enumerate(capture.inputs):
        if (again := _like(capture, slot.tensor, value)) is not None:
            return Output(source=index, view=again)
    source = detached_from(capture, value)
    if source is None:
        return None
    again = _like(capture, source, value)
    if (start := made_around(finder, source)) is not None:
        return Output(origin=Origin(parent=start, view=again))
    return Output(result=finder.results.of(source), view=again)


def _like(capture: Capture, tensor: torch.Tensor, value: torch.Tensor) -> Any:
    """How a wrapper is made of one around the same memory; None for another one."""
    if type(tensor) is not type(value):
        return None
    if not capture.tape.wrappers.has_same_parts(tensor, value):
        return None
    is_detached, is_alike = autograd.shares_version(tensor, value), _looks_like(tensor, value)
    if not is_detached and not is_alike:
        return None
    if is_alike and _is_around_the_same(tensor, value):
        return WrappedAgain()
    if any(part.requires_grad for _, part in paths_inside(value)):
        return None  # What is inside of a detached wrapper is detached, too.
    return DetachedAgain(not is_detached)


def detached_from(capture: Capture, value: torch.Tensor) -> torch.Tensor | None:
    """The result that another one is like but for autograd: the one that does require grad.

    Of several that don't, the first.
    """
    if value.requires_grad or value._base is not None:
        return None
    alike = [
        output
        for output in capture.outputs
        if is_wrapper(output)
        and output._base is None
        and (output is value or _like(capture, output, value) is not None)
    ]
    source = next((output for output in alike if output.requires_grad), alike[0])
    return None if source is value else source


def _looks_like(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two wrappers have the same metadata, but for whether they require grad.

    Objects among these are the same ones.
    """
    one, other = spec_of(first), spec_of(second)
    if one.structure is None or other.structure is None:
        return False
    if (one.shape, one.stride) != (other.shape, other.stride):
        return False
    objects = [[value for _, _, value in objects_inside(each)] for each in (first, second)]
    if [*map(id, objects[0])] != [*map(id, objects[1])]:
        return False
    metadata = metadata_without_grad(one.structure, first)
    return metadata == metadata_without_grad(other.structure, second)


def _is_around_the_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    parts = [[part for _, part in paths_inside(each)] for each in (first, second)]
    return all(a is b for a, b in zip(*parts, strict=True))


def storages_of(value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """The memory of a tensor and of what it wraps, and the plain tensors that have it."""
    for part in leaves_of(value):
        if part.layout is torch.strided:
            yield tracing.storage_key(part), part
