"""Where outputs come from: results of the graph, inputs, and what shares memory with them."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.nodes import has_grad_fn
from funcaot._torch.tensors.classes.own_functions import is_own_class
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.own_classes import class_of
from funcaot.aot.capture.capture import Capture, Input, geometry_of
from funcaot.aot.closure.lazy import is_iterator, is_view
from funcaot.aot.effects.effects import Output
from funcaot.aot.effects.made_again import made_again
from funcaot.aot.effects.origin import Origin
from funcaot.aot.effects.refused_views import view_of_a_function
from funcaot.aot.effects.required import attribute_changes
from funcaot.aot.effects.wrappers import Memory
from funcaot.aot.graph import graphs
from funcaot.aot.reader.reader_tensors import UnknownTensorError
from funcaot.aot.state.state_changes import hides_tensor, refuse_text
from funcaot.aot.tape.memory import views
from funcaot.aot.tape.memory.nested_views import named, views_above, whole_of
from funcaot.aot.tape.wrappers import is_wrapper
from funcaot.errors import UnsupportedError

_RUNNING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def describe(slots: tuple[Input, ...], index: int) -> str:
    """Name an input for a message."""
    return str(slots[index])


class Results:
    """What the functional graph has to compute, in order, each once."""

    def __init__(self, capture: Capture, name: str) -> None:
        self.tape = capture.tape
        self.name = name
        self.tensors: list[torch.Tensor] = []
        self._positions: dict[tuple[fx.Node, bool], int] = {}
        self._inputs = frozenset(id(slot.tensor) for slot in capture.slots)

    def node(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a tensor that must have been computed in the capture."""
        node = self.tape.node_of(tensor)
        if node is None:
            raise UnknownTensorError(
                f"{self.name} returns or stores a tensor that no node of its graph computes.",
                remedy="compute it in the function itself; call a Function that makes it once "
                "before; fullgraph=False runs such calls as they are.",
            )
        return node

    def of(self, tensor: torch.Tensor) -> int:
        """The position of a tensor as autograd knows it."""
        if is_wrapper(tensor) and tensor.grad_fn is not None and id(tensor) not in self._inputs:
            self.tape.wrappers.set_apart(tensor)
        key = (self.node(tensor), tensor.requires_grad)
        known = self._positions.get(key)
        if known is not None:
            if self.tensors[known] is tensor or not tensor.requires_grad:
                return known
            if self.tensors[known].grad_fn is tensor.grad_fn and tensor.grad_fn is not None:
                return known
            # The same value with another derivative: a node of its own.
            with torch.enable_grad():
                tensor = tensor.view_as(tensor)
            key = (self.node(tensor), tensor.requires_grad)
        self._positions[key] = len(self.tensors)
        self.tensors.append(tensor)
        return self._positions[key]

    def silent(self, tensor: torch.Tensor) -> int:
        """The position of a tensor's value, whatever autograd thinks of it."""
        node = self.node(tensor)
        known = self._positions.get((node, False))
        if known is not None:
            return known
        return self.of(self.tape.constant(node) if tensor.requires_grad else tensor)


class Aliases:
    """Where outputs come from: whose memory they share and what autograd knows about that."""

    def __init__(self, capture: Capture, results: Results, name: str) -> None:
        self.capture = capture
        self.results = results
        self.name = name
        self.slots = capture.slots
        self.storages: dict[int, list[int]] = {}
        for index, slot in enumerate(self.slots):
            moved = id(slot.tensor) in capture.events.sources
            strided = slot.spec.layout is torch.strided and slot.spec.structure is None
            if strided and slot.kind not in ("member", "inner") and not moved:
                self.storages.setdefault(tracing.storage_key(slot.tensor), []).append(index)
        self.origins: dict[int, Origin] = {}
        self.owners: dict[int, tuple[Origin, torch.Tensor]] = {}
        self.outputs: dict[int, Output] = {}
        self.wrapped = Memory(capture, name, results.of, self.storages)
        self._kept: list[torch.Tensor] = []
        self._twins: dict[int, torch.Tensor] = {}  # Whose changes count for what is made to start.
        self._above = views_above(capture.outputs, [slot.tensor for slot in capture.slots])
        self._named = named(capture.outputs, self._above)

    def output(self, value: Any) -> Output:
        """Where a flat output comes from."""
        if not isinstance(value, torch.Tensor):
            self._refuse_hidden(value)
            return Output(value=value)
        known = self.outputs.get(id(value))
        if known is None:
            known = self._of_class(value, self._output(value))
            if known.view is not None and id(value) in self._named:
                # One object, returned twice or with views of its own: only an origin says that.
                origin = self.origins.get(id(value))
                origin = origin or Origin(known.source, known.result, view=known.view)
                known = replace(known, source=None, result=None, view=None, origin=origin)
            self.outputs[id(value)] = known
        return known

    def _of_class(self, value: torch.Tensor, made: Output) -> Output:
        """The output, as one of the user's class that the function made it of."""
        kind = class_of(value)
        if not is_own_class(kind) or any(value is slot.tensor for slot in self.slots):
            return made
        if made.view is not None and made.view.is_alias:
            made = replace(made, view=None)
        marked = "_is_param" in vars(value)
        return replace(made, of_class=kind, parameter=marked)

    def _refuse_hidden(self, value: Any) -> None:
        refuse_text(value, self.name)
        if type(value) is int and any(value == id(slot.tensor) for slot in self.slots):
            raise UnsupportedError(
                f"{self.name} returns or keeps a number that says which tensor it is called with "
                "(id), which is another one in each call.",
                remedy="call id outside of the compiled function.",
            )
        if isinstance(value, RemovableHandle):
            raise UnsupportedError(
                f"{self.name} returns or keeps the handle of a hook, which removes the hook of its "
                "capture and not that of a later call.",
                remedy="remove the hook inside, or register it outside.",
            )
        if is_iterator(value) or isinstance(value, _RUNNING) or hides_tensor(value):
            lazy, kind = is_iterator(value) or is_view(value), type(value).__name__
            why = "holds tensors of its capture, where no later call could put its own."
            if is_iterator(value) and not hides_tensor(value):
                why = "is read once: later calls would return it as the first caller left it."
            raise UnsupportedError(
                f"{self.name} returns or keeps an object of class {kind} that {why}",
                remedy="return a list or a dictionary of what is in it."
                if lazy
                else "return tensors, or register the class as a pytree "
                "(torch.utils._pytree.register_pytree_node).",
            )

    def _refuse_moved(self, value: torch.Tensor) -> None:
        self.capture.tape.outside_memory.refuse_given_out(value, self.name)
        whole = whole_of(value)
        events = self.capture.events
        moved = id(whole) not in events.resized and tracing.has_storage_change(whole)
        if (moved or id(value) in events.sources) and not events.is_assigned(value):
            raise UnsupportedError(
                f"{self.name} returns a tensor that it made and gave another storage by set_.",
                remedy="return the tensor that it was set to, or a clone.",
            )
        self._refuse_left(value)

    def _refuse_left(self, value: torch.Tensor) -> None:
        """Refuse to give out what an input showed before it was set to something else."""
        root = graphs.view_root(self.results.node(value))
        left = [slot for slot in self.slots if id(slot.tensor) in self.capture.events.sources]
        if any(root is graphs.view_root(slot.entered or slot.node) for slot in left):
            raise UnsupportedError(
                f"{self.name} gives out memory that an input had before set_, or before its .data "
                "was assigned to: as a view, or to another input.",
                remedy="clone that memory.",
            )

    def _output(self, value: torch.Tensor) -> Output:
        for index, slot in enumerate(self.capture.inputs):
            if value is slot.tensor:
                return Output(source=index)
        if any(value is part for _, part in self.wrapped.parts):
            return Output(origin=self.origin(value))
        self.results.node(value)
        if self.wrapped.exist and (again := made_again(self, value)):
            return again
        self.wrapped.check(value)
        if is_wrapper(value):
            if value.requires_grad and value.is_leaf:
                self._refuse_leaf()
            return Output(result=self.results.of(value))
        self._refuse_moved(value)
        if value.layout is not torch.strided:
            return Output(result=self.results.of(value))
        origin = self.origin(value)
        if _is_plain(origin):
            return Output(result=origin.result, source=origin.source, view=origin.view)
        return Output(origin=origin)

    def origin(self, value: torch.Tensor) -> Origin:
        """How the epilogue makes a tensor, found once per tensor."""
        known = self.origins.get(id(value))
        if known is None:
            known = self.origins[id(value)] = self._origin(value)
            self._kept.append(value)
        return known

    def _origin(self, value: torch.Tensor) -> Origin:
        for index, slot in enumerate(self.slots):
            if value is slot.tensor:
                return Origin(source=index)
        for start, part in self.wrapped.parts:
            if value is part:
                return start
        if value._is_view() and (base := whole_of(value)) is not value:
            joined = self._joined_start(value)
            return self._view(base if joined is None else self.slots[joined].tensor, value)
        key = tracing.storage_key(value)
        slots = self.storages.get(key)
        if slots is not None:
            joined = self._joined_start(value)
            index = self._related(value, slots) if joined is None else joined
            return self._alias(Origin(source=index), self.slots[index].tensor, value)
        owner = self.owners.get(key) or self.wrapped.part_with(value)
        if owner is None:
            return self._own(key, value)
        if has_grad_fn(value) and self.wrapped.shows_part(value):
            return Origin(result=self.results.of(value))
        return self._alias(*owner, value)

    def _joined_start(self, value: torch.Tensor) -> int | None:
        """For what lies in joined memory, an input that it is a part of."""
        key = tracing.storage_key(value)
        found = [i for i in self.storages.get(key, ()) if self.slots[i].kind == "joined"]
        if not found:
            return None
        node = self.results.node(value)
        for index in found:
            if views.chain(self.results.node(self.slots[index].tensor), node) is not None:
                return index
        raise UnsupportedError(
            f"{self.name} returns memory that inputs share, under a transform, and it is no view "
            "of one of them.",
            remedy="return a clone.",
        )

    def _related(self, value: torch.Tensor, slots: list[int]) -> int:
        """Of inputs that share memory, the one that a tensor was detached from."""
        for index in slots:
            if autograd.shares_version(self.slots[index].tensor, value):
                return index
        return slots[0]

    def storage_of(self, tensor: torch.Tensor) -> Origin | None:
        """The memory that an input was set to; None if that can't be made again."""
        source = self.capture.events.sources.get(id(tensor))
        if source is None:
            return Origin(result=self.results.silent(tensor))
        if tracing.has_storage_change(source):
            return None
        self._refuse_left(source)
        start = self.origin(source)
        if start.source is not None and _is_reshaped(self.slots[start.source]):
            return None
        node = self.results.node(tensor)
        if node is self.results.node(source):
            return start
        return self._alias(start, source, self.capture.tape.constant(node))

    def _view(self, base: torch.Tensor, value: torch.Tensor) -> Origin:
        """A view, made again from its base."""
        meta = autograd.creation_meta(value)
        differentiable = base.requires_grad or value.requires_grad
        if meta == autograd.CreationMeta.IN_CUSTOM_FUNCTION and differentiable:
            key = tracing.storage_key(value)
            if autograd.passes_through(value) and self._owns(key, value):
                return self._own(key, value)
            if self.wrapped.shows_part(value):
                return Origin(result=self.results.of(value))
            raise view_of_a_function(self.name, value)
        steps = self._steps(base, value)
        if differentiable:
            self._refuse_beyond(base, steps)
        steps = tuple(step for step in steps if not step.is_detach) or (views.SAME,)
        recorded = meta not in (
            autograd.CreationMeta.NO_GRAD_MODE,
            autograd.CreationMeta.INFERENCE_MODE,
        )
        events = self.capture.events
        if id(base) in events.sources or (id(base) in events.detached and value.requires_grad):
            raise UnsupportedError(
                f"{self.name} returns a view of a tensor that it changed by set_ or detach_.",
                remedy="return a clone of the view.",
            )
        if recorded and (made := self._of_view(value, self._above.get(id(value)))) is not None:
            return made
        start = self.origin(base)
        index = start.source or 0
        before, after = (None, None)
        if start.source is not None:
            before, after = attribute_changes(self.slots[index])
        if (before is not None or start.leaf) and recorded and not has_grad_fn(value):
            what = "a tensor that it made" if start.leaf else describe(self.slots, index)
            raise UnsupportedError(
                f"{self.name} returns a view that it made before {what} began to require grad.",
                remedy="call requires_grad_() first.",
            )
        if after is not None:
            raise UnsupportedError(
                f"{self.name} detaches {describe(self.slots, index)} in place and returns a "
                "view of it.",
                remedy="use x.detach() instead of x.detach_().",
            )
        # A view made with grad mode on of one that was made with grad mode off.
        mixed = has_grad_fn(value) and base.requires_grad and not self._leads_back(value)
        # Views of an op with several results can't be written to, however they are made again.
        several = meta == autograd.CreationMeta.MULTI_OUTPUT_NODE
        view = views.View(steps, recorded or mixed, mixed, several)
        if self._is_own_leaf(base, value):
            parent = None if start == Origin(start.source, start.result) else start
            source, result = (start.source, start.result) if parent is None else (None, None)
            return Origin(source, result, parent, view=view, leaf=True)
        if start.parent is None and start == Origin(start.source, start.result):
            return Origin(start.source, start.result, view=view)
        whole = start.view is None and not start.kind and not start.part
        if whole and start.graft is None and not start.leaf:
            return Origin(start.source, start.result, view=view)
        return Origin(parent=start, view=view)

    def _refuse_beyond(self, base: torch.Tensor, steps: views.Steps) -> None:
        """Refuse a view of what an input showed before its shape was changed in place.

        Made from what it shows now, the view would get no gradient outside of that.
        """
        shape, stride, _ = geometry_of(base)
        for index, slot in enumerate(self.slots):
            if slot.tensor is not base or not _is_reshaped(slot):
                continue
            for step in steps:
                if isinstance(step, views.StridedStep) and not step.stays_in(shape, stride):
                    raise UnsupportedError(
                        f"{self.name} returns a view of what {describe(self.slots, index)} was "
                        "before it changed its shape in place.",
                        remedy="take a new view instead: x.as_strided(...), not as_strided_.",
                    )

    def _leads_back(self, view: torch.Tensor) -> bool:
        return view._base is not None and graphs.leads_to(view, view._base)

    def _is_own_leaf(self, base: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether a view was made to require grad by itself (``x[0].requires_grad_()``)."""
        try:
            required, is_leaf = value.requires_grad, value.grad_fn is None
        except RuntimeError:
            # A view made in no_grad whose base was written to: autograd forbids to look.
            return False
        if required and is_leaf:
            self.refuse_used_leaf(value)
            return True
        if required and not base.requires_grad:
            self._refuse_leaf()
        return False

    def _owns(self, key: int, value: torch.Tensor) -> bool:
        """Whether this memory is no input's and that of no other output."""
        known = key in self.storages or key in self.owners or self.wrapped.holds(key)
        return not known and self._is_sole(key, value)

    def _steps(self, base: torch.Tensor, value: torch.Tensor) -> views.Steps:
        steps = views.chain(self.results.node(base), self.results.node(value))
        if steps is not None:
            return steps
        if base.dtype == value.dtype and base.is_conj() == value.is_conj():
            return views.strided(base, value)
        raise UnsupportedError(
            f"{self.name} returns a view of another tensor that can't be made again.",
            remedy="return the tensor itself, or a clone of the view.",
        )

    def _of_view(self, value: torch.Tensor, above: torch.Tensor | None) -> Origin | None:
        """A view, made again from another one that is returned, if that is possible."""
        if above is None:
            return None
        several = autograd.creation_meta(value) == autograd.CreationMeta.MULTI_OUTPUT_NODE
        ends = self.results.node(above), self.results.node(value)
        return self.origin(above).with_view(*ends, several=several)

    def _alias(self, start: Origin, base: torch.Tensor, value: torch.Tensor) -> Origin:
        """A tensor that shares memory with another one but is no view of it for autograd."""
        steps = self._steps(base, value)
        if value.is_inference():
            # No graph and no versions: a view is only a view.
            view = views.View(steps or (views.SAME,), recorded=False)
            if start.parent is None and start.view is None and not start.part:
                return Origin(start.source, start.result, view=view)
            return Origin(parent=start, view=view)
        twin = self._twins.get(id(base), base)
        kind = "detach" if twin is value or autograd.shares_version(twin, value) else "data"
        # detach itself is in the chain, or what kind says.
        steps = tuple(step for step in steps if not step.is_alias)
        view = views.View(steps, recorded=False) if steps else None
        parent = None if start.source is not None or start.result is not None else start
        if start.view is not None or start.kind or start.part:
            parent = start
        source = start.source if parent is None else None
        result = start.result if parent is None else None
        graft, leaf = None, False
        if value.requires_grad and value.is_leaf:
            self.refuse_used_leaf(value)
            leaf = True
        elif value.requires_grad:
            graft = self.results.of(value)
        return Origin(source, result, parent, kind, view, graft, leaf, _is_parameter(value))

    def _own(self, key: int, value: torch.Tensor) -> Origin:
        """The first tensor met of a storage that the function made."""
        node = self.results.node(value)
        root = graphs.view_root(node)
        leaf = value.requires_grad and value.is_leaf
        if leaf:
            self.refuse_used_leaf(value)
        sole = self._is_sole(key, value)
        if root is not node and not sole:
            # Others live in the same memory: start from all of it.
            whole = self.capture.tape.constant(root)
            self._kept.append(whole)
            owner = Origin(result=self.results.of(whole))
            self.owners[key] = (owner, whole)
            self._twins[id(whole)] = value
            return self._alias(owner, whole, value)
        self._check_strides(value, node)
        position = self.results.silent(value) if leaf else self.results.of(value)
        origin = Origin(result=position, leaf=leaf, parameter=_is_parameter(value))
        self.owners[key] = (origin, value)
        return origin

    def _is_sole(self, key: int, value: torch.Tensor) -> bool:
        """Whether every output in some memory is this tensor or one of its views."""
        return all(
            other is value or other._base is value
            for other in self.capture.outputs
            if isinstance(other, torch.Tensor)
            and other.layout is torch.strided
            and not is_wrapper(other)
            and tracing.storage_key(other) == key
        )

    def _check_strides(self, value: torch.Tensor, node: fx.Node) -> None:
        made = tuple(graphs.value_of(node).stride())
        if not _same_strides(tuple(value.shape), tuple(value.stride()), made):
            raise UnsupportedError(
                f"{self.name} returns a tensor with strides {list(value.stride())} that it filled "
                "in place; the functional graph makes it with other strides.",
                remedy="return a clone of it.",
            )

    def refuse_used_leaf(self, leaf: torch.Tensor) -> None:
        """Refuse a leaf that the function made if something else depends on it."""
        others = [t for t in self.capture.outputs if isinstance(t, torch.Tensor) and t is not leaf]
        others += [slot.tensor for slot in self.slots]
        if any(graphs.leads_to(tensor, leaf) for tensor in others):
            self._refuse_leaf()

    def _refuse_leaf(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.name} returns a leaf that requires grad and that it made itself, and "
            "something that depends on it, or a view of such a leaf.",
            remedy="make the leaf outside and pass it as an argument.",
        )


def _is_plain(origin: Origin) -> bool:
    """Whether an ``Output`` says all of it: an input, a result or a view of one."""
    alone = origin.parent is None and not origin.kind and origin.graft is None
    return alone and not origin.leaf and not origin.parameter and not origin.part


def _is_parameter(value: torch.Tensor) -> bool:
    """Whether the function made a ``torch.nn.Parameter``, which a capture only marks."""
    return isinstance(value, torch.nn.Parameter)


def _is_reshaped(slot: Input) -> bool:
    return geometry_of(slot.tensor) != slot.geometry


def _same_strides(shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return all(a == b for size, a, b in zip(shape, first, second, strict=True) if size > 1)
