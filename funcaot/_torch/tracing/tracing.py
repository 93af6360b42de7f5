"""Private names behind a symbolic trace: fake, proxied and functional tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._C import _autograd as autograd_bindings
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    decompose,
    disable_autocast_cache,
    get_proxy_slot,
    track_tensor_tree,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from funcaot._torch.autograd.coalesced import look_at_sparse
from funcaot._torch.autograd.detached import DetachedWrites
from funcaot._torch.autograd.function_views import FunctionViews
from funcaot._torch.distributed.collectives import is_in_place_collective
from funcaot._torch.dynamo.compile_lock import import_dynamo
from funcaot._torch.tensors.classes.wrapping import flattened, is_wrapper_class, is_wrapper_subclass
from funcaot._torch.tensors.ops import CHECKS, acts
from funcaot._torch.tensors.sizes.ragged import NestedSizes
from funcaot._torch.tracing import tracing_errors
from funcaot._torch.tracing.eager_rules.answered import answered
from funcaot._torch.tracing.eager_rules.counted_views import counted_view
from funcaot._torch.tracing.eager_rules.deeds import tell
from funcaot._torch.tracing.eager_rules.eager_arguments import as_eager_takes
from funcaot._torch.tracing.eager_rules.eager_strides import laid_out_as_in_eager
from funcaot._torch.tracing.eager_rules.outside_memory import OutsideMemory
from funcaot._torch.tracing.eager_rules.products.ragged import by_own_op
from funcaot._torch.tracing.eager_rules.refused_writes import refuse_resized_storage, refuse_writes
from funcaot._torch.tracing.eager_rules.rewritten import REWRITTEN
from funcaot._torch.tracing.fake_values import sparing_real_tensors
from funcaot._torch.tracing.functional_values import keep_strides, outside_only, run_below
from funcaot._torch.tracing.own_classes import traced_classes
from funcaot._torch.tracing.tracing_errors import is_mixed, text_of
from funcaot.base.scopes import untraced
from funcaot.errors import FuncaotError, OutsideError, UnsupportedError

DATA_DEPENDENT_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]

__all__ = [
    "CAPTURED",
    "DATA_DEPENDENT_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "FunctionalTensorMode",
    "ProxyTorchDispatchMode",
    "PythonKeyTracer",
    "decompose",
    "disable_autocast_cache",
    "disable_current_modes",
    "fake_mode",
    "functional_inner",
    "has_data_mutation",
    "has_storage_change",
    "in_backward",
    "is_abstract",
    "is_batched",
    "is_capturing",
    "is_symbolic",
    "is_traced",
    "new_tracer",
    "node_of",
    "saved_tensors_hooks_enabled",
    "set_forward_ad_enabled",
    "storage_key",
    "storage_keys",
    "temporarily_clear_interpreter_stack",
    "to_functional",
    "track_tensor_tree",
    "unwrap_functorch",
    "without_torch_function",
]

# Missing in the stubs.
saved_tensors_hooks_enabled = autograd_bindings._saved_tensors_hooks_is_enabled  # type: ignore
disable_current_modes = _disable_current_modes
set_forward_ad_enabled = _set_fwd_grad_enabled
CAPTURED = "(being captured)"  # in the text of a tensor that has no numbers yet
without_torch_function = torch._C.DisableTorchFunction


class NotingTracer(PythonKeyTracer):
    """Calls ``note`` on each node that it makes."""

    note: Callable[[fx.Node], None] | None = None

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Make a node of the graph."""
        node = super().create_node(*args, **kwargs)
        if self.note is not None:
            self.note(node)
        return node


def new_tracer() -> NotingTracer:
    """A tracer with an own root module and an own graph, ready for proxies."""
    tracer = NotingTracer()
    tracer.root = torch.nn.Module()
    tracer.graph = fx.Graph(tracer_cls=PythonKeyTracer)
    tracer.tensor_attrs = {}
    tracer._init = True  # type: ignore[attr-defined]
    return tracer


def fake_mode(shape_environment: Any = None) -> FakeTensorMode:
    """A mode for the values of a trace, whose sizes may belong to a shape environment.

    Such a mode keeps no results of ops, since what an op asks about sizes has to be noted by each
    trace that runs it.
    """
    import_dynamo()  # The mode does, in another order.
    mode = FakeTensorMode(allow_non_fake_inputs=False, shape_env=shape_environment)
    if shape_environment is not None:
        mode.cache_enabled = False
    else:
        mode.create_symbolic_nested_int = NestedSizes()  # type: ignore[method-assign]
    return sparing_real_tensors(mode)


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Wrap a tensor so that views and mutations of it are recorded functionally."""
    return FunctionalTensor.to_functional(tensor)


def functional_inner(tensor: torch.Tensor) -> torch.Tensor:
    """The up-to-date value inside a functional wrapper (the tensor itself if it is none)."""
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor.elem)


def look_like(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Give a functional wrapper the outer shape, strides and storage of another one."""
    with outside_only():
        torch.ops.aten.set_.source_Tensor(tensor, other)


def negated_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory with the neg bit turned over."""
    return torch._neg_view(tensor)  # type: ignore[no-any-return]


def without_functional_wrapper(tensor: torch.Tensor) -> torch.Tensor:
    """What is inside of the C++ wrapper that a ``FunctionalTensor`` holds (or the tensor)."""
    return torch._from_functional_tensor(tensor) if torch._is_functional_tensor(tensor) else tensor


def node_of(tensor: torch.Tensor, tracer: PythonKeyTracer) -> fx.Node | None:
    """The graph node whose value this tensor is now, or None if it was never traced."""
    slot = get_proxy_slot(functional_inner(tensor), tracer, None, lambda value: value.proxy)
    return None if slot is None else slot.node


def plain_proxy(inner: torch.Tensor, tracer: PythonKeyTracer) -> fx.Proxy | None:
    """What stands for a fake tensor in a trace; None for a constant, whose value is known."""
    slot = get_proxy_slot(inner, tracer, None)
    return None if slot is None or slot.constant is not None else slot.proxy


def has_data_mutation(tensor: torch.Tensor) -> bool:
    """Whether a functional wrapper's data was written to."""
    return torch._functionalize_has_data_mutation(tensor.elem)  # type: ignore[attr-defined]


def has_storage_change(tensor: torch.Tensor) -> bool:
    """Whether ``set_`` or ``resize_`` gave a functional wrapper another storage."""
    return torch._functionalize_was_storage_changed(  # type: ignore[attr-defined]
        tensor.elem  # type: ignore[attr-defined]
    ) or torch._functionalize_was_inductor_storage_resized(  # type: ignore[attr-defined]
        tensor.elem  # type: ignore[attr-defined]
    )


def storage_key(tensor: torch.Tensor) -> int:
    """An integer equal for two live tensors exactly if they share a storage."""
    return tensor.untyped_storage()._cdata


def storage_keys(tensor: torch.Tensor) -> tuple[int, ...]:
    """The same for every storage that a tensor lives in: a sparse one lives in several."""
    if tensor.layout is torch.strided:
        return (storage_key(tensor),)
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    else:
        return ()
    return tuple(storage_key(part) for part in parts)


def is_capturing() -> bool:
    """Whether a symbolic trace is recording in this thread."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return mode is not None


def is_abstract() -> bool:
    """Whether a symbolic trace is recording, or tensors are fake: there are no values to run on."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None or is_capturing()


def unwrap_functorch(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor one functorch level below, or None if this is no wrapper."""
    if functorch.is_functorch_wrapped_tensor(tensor):
        return functorch.get_unwrapped(tensor)
    return None


def is_traced(value: Any) -> bool:
    """Whether a tensor belongs to a capture, behind the wrappers of levels that have ended too."""
    while isinstance(value, torch.Tensor):
        if is_symbolic(value):
            return True
        value = unwrap_functorch(value)
    return False


def is_symbolic(value: Any) -> bool:
    """Whether it is a tensor of a capture itself, or wraps one."""
    if isinstance(value, FunctionalTensor | FakeTensor):
        return True
    if type(value) in (torch.Tensor, torch.nn.Parameter) or not is_wrapper_subclass(value):
        return False
    with without_torch_function():  # a capture would take it for a use of the tensor
        parts = [getattr(value, name) for name in flattened(value)[0]]
    return any(map(is_symbolic, parts))


def one_example(tensor: torch.Tensor) -> torch.Tensor | None:
    """The plain value behind functorch's wrappers; of a batch, its first example.

    None if the batch is empty, or on the vmap of ``is_grads_batched``, which hides the values.
    """
    if functorch.is_legacy_batchedtensor(tensor):
        return None
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            dimension = functorch.maybe_get_bdim(tensor)
            if inner.shape[dimension] == 0:
                return None
            # Below its own level, so that the selection is an ordinary op of the next one.
            with temporarily_clear_interpreter_stack():
                inner = _first(inner, dimension)
        tensor = inner
    return tensor


def _first(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return tensor.detach().select(dimension, 0)
    inner = functorch.get_unwrapped(tensor)
    if functorch.is_batchedtensor(tensor):
        inner = _first(inner, functorch.maybe_get_bdim(tensor))
    return _first(inner, dimension)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether one of functorch's wrappers of this tensor is that of a batch."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def transforms_active() -> bool:
    """Whether a ``torch.func`` transform is in progress in this thread."""
    return functorch.peek_interpreter_stack() is not None


def track(value: Any, proxy: fx.Proxy, tracer: PythonKeyTracer) -> Any:
    """Remember that a (tree of) fake tensors is what a proxy stands for."""
    return track_tensor_tree(value, proxy, constant=None, tracer=tracer)


def in_backward() -> bool:
    """Whether autograd's engine runs a backward in this thread."""
    return torch._C._current_graph_task_id() != -1


def backward_keeps_graph() -> bool:
    """Inside a backward: whether the engine was asked to retain the graph."""
    return torch._C._autograd._get_current_graph_task_keep_graph()  # type: ignore[attr-defined]


def forward_mode_active() -> bool:
    """Whether some level in progress, or a ``dual_level``, carries tangents forward."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    stack = functorch.get_interpreter_stack()
    jvp = functorch.TransformType.Jvp
    return stack is not None and any(level.key() == jvp for level in stack)


_UNTRACEABLE_TEXT = (
    *tracing_errors.READS_AN_ARRAY,
    "Cannot access data pointer",
    "access the data pointer on an invalid python storage",
    "a bytes-like object is required, not 'F",
    "its data is not allocated yet",
)


def is_untraceable(error: BaseException) -> bool:
    """Whether code failed because it asked a symbolic tensor for its data.

    That is a value (``item``, ``if``, ``nonzero``), memory (``numpy``, ``data_ptr``, DLPack), or
    an op that has no symbolic implementation.
    """
    if isinstance(
        error,
        (*DATA_DEPENDENT_ERRORS, UnsupportedFakeTensorException, UnsupportedOperatorException),
    ):
        return True
    if isinstance(error, FuncaotError):  # it may quote another one's text
        return False
    if isinstance(error, RuntimeError | TypeError | NotImplementedError):
        return any(text in text_of(error) for text in _UNTRACEABLE_TEXT)
    return False


def is_untraceable_function(error: BaseException) -> bool:
    """Whether a Function's own code failed so that only real values help.

    Like ``is_untraceable``; and where it uses another tensor than its operands, a file, a clock.
    """
    return is_untraceable(error) or isinstance(error, OutsideError) or is_mixed(error)


def why_untraceable(error: BaseException) -> str:
    """One line for the report."""
    if is_mixed(error):
        return "it uses a tensor that isn't one of its operands"
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def refuse_data_access(tensor: torch.Tensor) -> None:
    """Let C++ code that asks a symbolic tensor for its memory fail instead of getting null."""
    torch._C._set_throw_on_mutable_data_ptr(tensor)  # type: ignore[attr-defined]


def _dispatches_itself(kind: type) -> bool:
    """Whether tensors of a class take ops apart themselves."""
    return is_wrapper_class(kind) and not issubclass(kind, FunctionalTensor | FakeTensor)


class TapeFunctionalMode(FunctionalTensorMode):
    """Functional tensors, with checks of values (``linalg``'s error codes) as plain ops.

    Torch would order such an op by a token; a graph that keeps every check keeps their order.

    Attributes:
        detaching: Whether the op being recorded is a ``detach``, which becomes a plain alias.
        writing: Whether it is an op that writes to an argument.
        running: The op itself; a view that is recorded for another one is made anew.
        function_views: What Functions returned that shares memory with what they were given.
        detached_writes: What was written to memory that detached tensors share.
        answer: Takes an op, its arguments and how it failed; returns its result from real values,
            or ``NotImplemented``.
        note_set: Is told of each ``set_``, with its target and its source.
        record_collective: Records what an op of a process group does, and returns what it does.
    """

    # Those that torch records for a user's op that writes to its arguments, when traced again.
    supports_higher_order_operators = True
    detaching = False
    writing = False
    running: Any = None
    answer: Callable[..., Any] | None = None
    note_set: Callable[[torch.Tensor, Any], None] | None = None
    record_collective: Callable[..., Any] | None = None

    def __init__(self) -> None:
        """Nothing is shared yet."""
        super().__init__()
        self.function_views = FunctionViews()
        self.detached_writes = DetachedWrites()
        self.outside = OutsideMemory()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record a check on the traced values; everything else as torch does."""
        if any(map(_dispatches_itself, types)):  # A wrapper's dispatch, then its parts here.
            return by_own_op(self, func, args)
        view = counted_view(self, func, types, args, kwargs or {})
        if view is not NotImplemented:
            return view
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs or {})
        if self.record_collective is not None and is_in_place_collective(func):
            with self, untraced(), without_torch_function():
                return self.record_collective(func, args)
        if self.function_views.groups:
            self.function_views.check(tree_leaves((args, kwargs)))
        if func in CHECKS or acts(func):
            return run_below(self, func, args, kwargs or {})
        refuse_resized_storage(func)
        if func.overloadpacket is torch.ops.aten.set_:
            return self._set(func, types, args, kwargs)
        if func in REWRITTEN:
            with self, untraced(), without_torch_function():
                result = REWRITTEN[func](func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        before = self.detaching, self.writing, self.running
        self.running, self.detaching = func, func is torch.ops.aten.detach.default
        noted, writing = self.detached_writes, self.detached_writes.writing
        if func._schema.is_mutable:
            refuse_writes(func, args, kwargs or {}, self.outside)
            noted.writing = noted.write(func, args, kwargs or {}) or writing
            self.writing = True
        # Functorch's ops come with torch function modes on, which would see the tensors inside.
        try:
            with untraced(), without_torch_function():
                try:
                    args = self.outside.copied(func, args)
                    taken = as_eager_takes(self, func, args, kwargs or {})
                    result = super().__torch_dispatch__(func, traced_classes(types), taken, kwargs)
                except Exception as error:
                    answer = answered(self, func, args, kwargs or {}, error)
                    if answer is NotImplemented:
                        raise
                    return answer
                if not types and isinstance(result, FakeTensor):  # torch.add(2, 3)
                    return self.wrapped(result)
                keep_strides(func, args, kwargs or {})
                look_at_sparse(func, (args, kwargs), result)
                self.outside.note(result)
                tell(func, args, kwargs or {}, result)
                return laid_out_as_in_eager(self, func, args, kwargs or {}, result)
        finally:
            self.detaching, self.writing, self.running = before
            noted.writing = writing

    def wrapped(self, tensor: torch.Tensor) -> FunctionalTensor:
        """A functional tensor of a value that was recorded below."""
        return FunctionalTensor(torch._to_functional_tensor(tensor), self)

    def _higher_order(
        self, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a functional form of a user's op as it is; refuse every other operator."""
        if func not in (auto_functionalized, auto_functionalized_v2):
            raise UnsupportedError(
                f"The higher-order operator {func.name()} is used inside a compiled function.",
                remedy="call it outside of the compiled function; torch.where chooses by a value.",
            )
        # Registered for the class that this one is made of, and looked up by the type itself.
        return func.python_key_table[FunctionalTensorMode](self, *args, **kwargs)

    def _set(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """``set_``: torch leaves the outer wrapper as it was."""
        source = args[1] if len(args) == 2 else None
        if self.note_set is not None:
            with self:
                self.note_set(args[0], source)
        with without_torch_function():
            result = super().__torch_dispatch__(func, traced_classes(types), args, kwargs)
        if isinstance(source, torch.Tensor):
            look_like(args[0], source)
        return result
