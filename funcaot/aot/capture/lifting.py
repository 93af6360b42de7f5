"""Lifting: tensors that a function closes over become inputs while it is captured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.autograd import autograd
from funcaot._torch.levels import functorch
from funcaot._torch.tensors.pytree import is_size, tree_map
from funcaot._torch.tensors.ragged import is_placeholder_of_torch
from funcaot._torch.tensors.recurrent import RECURRENT
from funcaot._torch.tensors.shapes import SizeError
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.functional_values import make_growable
from funcaot.aot.capture.eager_errors import error_of_eager
from funcaot.aot.capture.events import InputEvents
from funcaot.aot.capture.handlers import data_dependent_ops, outs
from funcaot.aot.capture.handlers.idle_dropout import given_back
from funcaot.aot.capture.handlers.python_values import by_values
from funcaot.aot.capture.handlers.recurrent import run_recurrent
from funcaot.aot.capture.stale_views import stale_view
from funcaot.aot.closure.ran import calls_no_user
from funcaot.aot.graph.tensor_spec import is_dense
from funcaot.aot.signature.tensor_kinds import refuse_unknown_kind
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.aot.tape import sizes_of_values, storages, writes
from funcaot.aot.tape.bounds import check_bounds
from funcaot.aot.tape.strided_views import extent
from funcaot.aot.tape.tape import Tape
from funcaot.aot.tape.wrappers import is_wrapper
from funcaot.errors import UnsupportedError
from funcaot.scopes import untraced

_RECORDED = contextlib.nullcontext()
_RESIZING = frozenset(("resize_", "resize_as_"))
_UNSAFE = frozenset(("unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"))


class Lifting(TorchFunctionMode):
    """Replaces each real tensor that an op meets by the tape's input made for it.

    Attributes:
        lifted: The real tensors met so far that weren't arguments, in order.
        events: What happened to inputs' metadata.
        grad_mode: Grad mode of the call.
        forward_mode: Whether the call's tensors may carry tangents.
        inputs: The inputs so far, for messages.
    """

    def __init__(
        self,
        tape: Tape,
        known: dict[int, torch.Tensor],
        add: Callable[[torch.Tensor], torch.Tensor],
        name: str,
    ) -> None:
        """Start with the arguments.

        Args:
            tape: The tape.
            known: The tape's tensor for each real tensor that is an argument, by ``id``.
            add: Makes the tape's input for a real tensor.
            name: The user's function, for messages.
        """
        super().__init__()
        self.lifted: list[torch.Tensor] = []
        self.events = InputEvents()
        self.grad_mode = True
        self.forward_mode = False
        self.inputs: Sequence[Any] = ()
        self._tape = tape
        self._known = known
        self._real: dict[int, torch.Tensor] = {}
        self._add = add
        self._name = name
        tape.watch_set(self._set)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an op on the tape's tensors only."""
        if _describes_fake(func, args):
            return func(*args)
        entered: Any = tree_map(self.replace, (args, kwargs or {}), is_leaf=is_size)
        args, keywords = entered
        stale: dict[int, torch.Tensor] = {}
        if self.events.history.changes:
            (args, keywords), stale = self._with_fresh_views(func, args, keywords)
        if func in RECURRENT:
            with untraced():
                return run_recurrent(func, args, keywords)
        if keywords.get("out") is not None:
            outs.prepare(self._tape, func, args, keywords, self._resize)
        try:
            with untraced() if calls_no_user(func) else _RECORDED:
                result = self._run(func, args, keywords)
        except Exception as error:
            theirs = error_of_eager(error, self._tape, func, (args, keywords))
            if theirs is None:
                raise
            raise theirs from None
        if isinstance(result, torch.Tensor):
            # In place, eager returns the tensor itself, which the caller may assign again.
            result = stale.get(id(result), result)
            return self._real.get(id(result), result)
        return result

    def _resize(self, tensor: torch.Tensor, shape: Any, stride: Any) -> None:
        """Change the shape of a tensor in place, as if the function did."""
        self._run(torch.Tensor.resize_, (tensor, shape), {})
        if tuple(tensor.stride()) != stride:
            self._run(torch.Tensor.as_strided_, (tensor, shape, stride), {})

    def _with_fresh_views(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments without views that were made before a base changed its shape."""
        history, name = self.events.history, getattr(func, "__name__", "")
        history.inputs.update(id(slot.tensor) for slot in self.inputs)
        if name == "__get__":
            return (args, kwargs), {}
        if name not in writes.METADATA_ONLY:
            return history.refreshed((args, kwargs), self._name)
        target = args[0]
        if torch.is_grad_enabled() and history.is_outdated(target) and history.is_stale(target):
            raise stale_view(target, self._name)
        return (args, kwargs), {}

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, and note what can't be seen afterwards."""
        unchanged = given_back(func, args, kwargs)
        if unchanged is not None:
            return unchanged
        found = by_values(func, args, kwargs)
        if found is not NotImplemented:
            return found
        args = sizes_of_values.with_indices(func, args)
        name = getattr(func, "__name__", "")
        if "input" in kwargs and not args and (name == "as_strided" or writes.is_write(name)):
            kwargs = dict(kwargs)
            args = (kwargs.pop("input"),)
        if name in writes.RESHAPING:
            self._note_reshaping(name, args, kwargs)
        elif name in ("detach_", "requires_grad_"):
            if id(args[0]) in self.events.fixed:
                self._refuse_fixed(name)
            if name == "detach_":
                self._refuse_tangent(args[0])
                self.events.detached.add(id(args[0]))
        elif name == "detach" or func == tracing.GET_DATA:
            result = func(*args, **kwargs)
            is_data = name != "detach"
            source = args[0] if is_data and self.forward_mode else None
            self._tape.detached_writes.detach(result, source)
            self.events.reads_data |= is_data and args[0].requires_grad
            return result
        elif name == "__set__" and func == tracing.SET_DATA:
            raise UnsupportedError(
                f"{self._name} assigns to the .data of a tensor.",
                remedy="write x.copy_(value) under torch.no_grad(), or x.set_(value).",
            )
        elif name == "storage_offset" or (name == "as_strided" and _leaves(*args, **kwargs)):
            inner = functorch.fully_unwrapped(args[0])  # A level's wrapper has no storage.
            self.events.placed.append(inner)
            if name == "as_strided" and inner is args[0] and not self._is_in_an_input(inner):
                check_bounds(self._tape, *args, **kwargs)
        elif name in storages.READING and self._is_in_an_input(args[0]):
            raise storages.refuse_storage(self._name, self._described(args[0]))
        elif name.startswith(storages.RESIZING):
            raise storages.refuse_resizing(self._name)
        elif name in _UNSAFE:
            pieces = func(*args, **kwargs)
            source = args[0] if args else kwargs["input"]
            self.events.unsafe.append((source, autograd.version_of(source), tuple(pieces)))
            return pieces
        wraps = bool(args) and isinstance(args[0], list | tuple) and any(map(is_wrapper, args[0]))
        if name.startswith(("_foreach_", "_fused_")) and name.endswith("_") and not wraps:
            if name.startswith("_foreach_") and writes.share_memory(args[0]):
                return writes.one_by_one(func, args, kwargs)
            return writes.counted(args[0], lambda: func(*args, **kwargs))
        if writes.is_write(name):
            target = args[0] if args else None
            if isinstance(target, torch.Tensor):
                if writes.is_data_write(name):
                    writes.check_overlap(name, target)
                by_index = name == "__setitem__"
                if torch.is_grad_enabled() and (by_index or target._is_view()):
                    return self._write_to_view(target, func, args, kwargs)
        return data_dependent_ops.run(func, args, kwargs)

    def _write_to_view(
        self, view: torch.Tensor, func: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Write to a view and note what autograd saves, which can't be seen afterwards."""
        operands = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        base = view if view._base is None else view._base
        recorded = any(operand.requires_grad for operand in (base, *operands))
        if recorded and base.is_conj() and not view.is_complex():
            raise UnsupportedError(
                f"{self._name} writes to the real or imaginary part of {self._described(base)}, "
                "which is the conjugate of another tensor by its memory.",
                remedy="pass the tensor itself and call conj() inside, or pass x.resolve_conj().",
            )
        return writes.recorded(self._tape, view, operands, lambda: func(*args, **kwargs))

    def _is_in_an_input(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is that of an input, whose storage may go on."""
        key = tracing.storage_key(tensor)
        strided = [slot.tensor for slot in self.inputs if slot.spec.layout is torch.strided]
        return any(tracing.storage_key(other) == key for other in strided)

    def _described(self, tensor: torch.Tensor) -> str:
        """Name a tensor for a message: as the input that it is, if it is one."""
        found = next((slot for slot in self.inputs if slot.tensor is tensor), None)
        return f"a tensor {list(tensor.shape)}" if found is None else str(found)

    def _refuse_tangent(self, tensor: torch.Tensor) -> None:
        """Refuse to detach in place what carries a tangent, which no node of the tape says."""
        if self.forward_mode and tensor.requires_grad:
            raise UnsupportedError(
                f"{self._name} calls detach_ in forward mode.",
                remedy="use x.detach() instead of x.detach_().",
            )

    def _refuse_fixed(self, name: str) -> None:
        raise UnsupportedError(
            f"{self._name} calls {name} on an input that another input is a view of, and "
            "writes to one of them.",
            remedy="return the changed tensor instead (x.t() for x.t_(), and so on).",
        )

    def _note_reshaping(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep hold of the whole value before a tensor's shape is changed in place."""
        tensor, arguments = args[0], (*args[1:], *kwargs.values())
        if functorch.is_batchedtensor(tensor):
            # One example's dimensions aren't those of the tensor that changes with it.
            if name in _RESIZING:
                raise UnsupportedError(
                    f"{self._name} calls {name} on a tensor that a vmap inside of it batches.",
                    remedy="return a new tensor of that shape.",
                )
            name, arguments, tensor = "as_strided_", (), functorch.without_batches(tensor)
        self._note_reshape(name, tensor, arguments)
        self.events.history.note(name, tensor, arguments)
        if args[0] is tensor and name == "as_strided_" and _leaves(*args, **kwargs):
            self.events.placed.append(tensor)
        if tensor._is_view() and tensor.requires_grad and torch.is_grad_enabled():
            self.events.turned.add(id(tensor._base))
        shrinks = name in _RESIZING and not is_dense(tuple(tensor.shape), tuple(tensor.stride()))
        if shrinks or id(tensor) in self.events.detached:
            raise UnsupportedError(
                f"{self._name} calls {name} on a tensor "
                + ("with gaps." if shrinks else "that it detached in place."),
                remedy="return a new tensor of that shape.",
            )
        if id(tensor) in self.events.fixed:
            self._refuse_fixed(name)
        hidden = not torch.is_grad_enabled() and tensor.requires_grad
        if hidden and (self.grad_mode or not _is_leaf(tensor)):
            raise UnsupportedError(
                f"{self._name} calls {name} in no_grad mode on a tensor that requires grad.",
                remedy="call it with grad mode on, or return the changed tensor instead.",
            )
        if name in _RESIZING:
            self.events.resized.add(id(tensor))
            wanted = args[1].numel() if name == "resize_as_" else _count(args[1:])
            if wanted > tensor.numel():
                slot = next((slot for slot in self.inputs if slot.tensor is tensor), None)
                shares = slot is not None and slot.kind != "plain"
                if shares or tensor._is_view():
                    what = "an input that shares memory with another" if shares else "a view"
                    raise UnsupportedError(
                        f"{self._name} calls {name} on {what} and asks for more elements.",
                        remedy="return a new tensor of that shape.",
                    )
                self.events.grown.add(id(tensor))
                make_growable(tensor)
                return
        self._keep_whole(tensor)

    def _keep_whole(self, tensor: torch.Tensor) -> None:
        """Keep what a tensor shows now, whose memory others may go on to see and write to."""
        if id(tensor) not in self.events.wholes:
            with torch.no_grad():
                self.events.wholes[id(tensor)] = tensor.data

    def _note_reshape(self, name: str, tensor: torch.Tensor, arguments: tuple[Any, ...]) -> None:
        known = self.events.reshapes.get(id(tensor), ())
        if known is not None and name in writes.BY_DIMENSIONS:
            self.events.reshapes[id(tensor)] = (*known, (name, arguments))
        else:
            self.events.reshapes[id(tensor)] = None

    def _set(self, target: torch.Tensor, source: Any) -> None:
        """Note ``set_``, which torch function modes don't see."""
        if not isinstance(source, torch.Tensor):
            raise UnsupportedError(
                f"{self._name} calls set_ with a storage or without a source.",
                remedy="call x.set_(tensor).",
            )
        with tracing.without_torch_function():  # modes see the question, though not the call
            shared = tracing.storage_key(target) == tracing.storage_key(source)
        if shared:
            raise UnsupportedError(
                f"{self._name} calls set_ on a tensor with one that shares its memory.",
                remedy="return the view instead.",
            )
        if torch.is_grad_enabled() and source.requires_grad:
            raise UnsupportedError(
                f"{self._name} calls set_ with a tensor that requires grad; it has no derivative.",
                remedy="pass x.detach() to set_.",
            )
        if any(slot.tensor is target for slot in self.inputs):
            self._keep_whole(target)
        self.events.sources[id(target)] = source

    def replace(self, value: Any) -> Any:
        """The tape's tensor for a real one; anything else as it is."""
        if not isinstance(value, torch.Tensor) or isinstance(value, tracing.FunctionalTensor):
            return value
        found = self._known.get(id(value))
        if found is not None:
            return found
        if is_wrapper(value):
            if is_placeholder_of_torch(value):
                return value
            return value if tracing.is_symbolic(value) else self.lift(value)
        # Ops of functorch, and FunctionalTensor.layout, reach this mode with what is wrapped.
        inner = tracing.without_functional_wrapper(functorch.fully_unwrapped(value))
        if isinstance(inner, tracing.FunctionalTensor | tracing.FakeTensor):
            return value
        if is_wrapper(inner) and tracing.is_symbolic(inner):
            return value
        if inner is not value and functorch.transforms_active():
            raise UnsupportedError(
                f"Inside {self._name}, a torch.func transform is applied to a tensor that the "
                "function closes over.",
                remedy="pass the tensor as an argument of the compiled function.",
            )
        return self.lift(value)

    def lift(self, value: torch.Tensor) -> torch.Tensor:
        """Make the tape's input for a real tensor."""
        if torch.nn.parameter.is_lazy(value):
            raise FirstStepError
        refuse_unknown_kind(value, f"{self._name} uses {{}} that isn't one of its arguments.")
        added = self._add(value)
        self._known[id(value)] = added
        self._real[id(added)] = value
        self.lifted.append(value)
        return added


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:
        # A view made in no_grad whose base was written to: autograd forbids to look.
        return False


def _leaves(
    tensor: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None, **_: Any
) -> bool:
    """Whether ``as_strided`` may show memory that the tensor itself doesn't."""
    if storage_offset is not None:
        return True
    numbers = (*size, *stride, *tensor.shape, *tensor.stride())
    if not all(isinstance(number, int) for number in numbers):
        return True
    shape, steps = tuple(tensor.shape), tuple(tensor.stride())
    return not is_dense(shape, steps) or extent(tuple(size), tuple(stride)) > extent(shape, steps)


def _count(shape: tuple[Any, ...]) -> int:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if any(isinstance(size, torch.SymInt) for size in sizes):
        raise SizeError("resize_ to an open size.", remedy="compile with dynamic=False.")
    return math.prod(size for size in sizes if isinstance(size, int))


def _describes_fake(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether torch itself reads metadata of what a new fake tensor is made of.

    Ops of functorch reach a tape's modes with function modes on.
    """
    return (
        len(args) == 1
        and getattr(func, "__name__", "") == "__get__"
        and type(args[0]) is torch.Tensor
        and args[0].device.type == "meta"
        and not functorch.is_functorch_wrapped_tensor(args[0])
    )
