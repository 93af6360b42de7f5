"""The rule for ``make_fx``: one node in the graph, which keeps the Function and its rules."""

from __future__ import annotations

import contextlib
import operator
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from funcaot._torch.levels.functorch import dispatch_mode_count, pytree, transforms_active
from funcaot._torch.tensors.classes.wrapping import is_wrapper_subclass
from funcaot._torch.tensors.guards import autocast_as, autocast_state
from funcaot._torch.tensors.sizes.shapes import SYMBOLIC_NUMBERS
from funcaot._torch.tracing.seen_classes import classes_shown
from funcaot._torch.tracing.tracing import (
    FakeTensor,
    is_untraceable_function,
    refuse_data_access,
    why_untraceable,
)
from funcaot._torch.tracing.tracing_modes import ProxyTorchDispatchMode, track_tensor_tree
from funcaot.base.scopes import holding
from funcaot.classes import kept_values
from funcaot.classes.opaque import (
    Captor,
    KeepsGraphError,
    Layout,
    MakesWrapperError,
    Opaque,
    OtherValueError,
    Watch,
    current_captor,
    current_watch,
)
from funcaot.classes.premise import PremiseFailed
from funcaot.classes.shared_views import is_plain, reach
from funcaot.classes.traits import display_name, origin_of
from funcaot.errors import UnsupportedError
from funcaot.operator.operator import custom_function_call
from funcaot.rules.seen import unread
from funcaot.rules.stores import again, watch_of
from funcaot.transforms.forms.dirty import dirty_inputs
from funcaot.transforms.forms.undeclared import Writes
from funcaot.transforms.inlining import inlined, is_inlining

__all__ = ["FunctionNode", "distinct"]


_GIVEN = (torch.Tensor, *SYMBOLIC_NUMBERS)


class FunctionNode:
    """The target of a graph node that stands for one call of a Function.

    A call of the node calls the operator, so the rules of the Function survive whatever transform
    the graph meets later. Operands that are neither tensors nor made of open sizes live here, not
    among the node's arguments.

    Attributes:
        function: The Function class.
        opaque: Why forward can't be traced and what its outputs look like; None if it can.
        autocast: What autocasts where it is called, for its forward and its rules.
    """

    def __init__(
        self, function: type, operands: tuple[Any, ...], opaque: Opaque | None = None
    ) -> None:
        """Remember which operands were given by the graph, and the values of the rest."""
        self.function = function
        self.opaque = opaque
        self.autocast = autocast_state()
        leaves, self._spec = _flat(operands)
        self._is_given = tuple(isinstance(value, _GIVEN) for value in leaves)
        self._constants = tuple(value for value in leaves if not isinstance(value, _GIVEN))
        # A graph's code calls it by this name, and a lambda's is none.
        self.__name__ = self.__qualname__ = re.sub(r"\W", "_", display_name(function))
        # Not the Function's own: a graph's code names what is in torch instead of holding it.
        self.__module__ = "funcaot"

    def operands(self, *tensors: Any) -> tuple[Any, ...]:
        """Put what the graph gives and constants back in order."""
        rest, constants = iter(tensors), iter(self._constants)
        leaves = tuple(next(rest) if given else next(constants) for given in self._is_given)
        return leaves if self._spec is None else pytree.tree_unflatten(list(leaves), self._spec)

    def __call__(self, *tensors: Any) -> Any:
        """Call the Function through the operator."""
        with autocast_as(self.autocast):
            return self._call(tensors)

    def _again(self) -> contextlib.AbstractContextManager[None]:
        """While forward runs that was captured; an opaque one runs for the call."""
        if self.opaque is not None:
            return contextlib.nullcontext()
        return self._taken_back()

    def _taken_back(self) -> contextlib.AbstractContextManager[None]:
        """While forward or setup_context run once more: what they count is taken back."""
        return again(self.function, self._constants)

    def _call(self, tensors: tuple[Any, ...]) -> Any:
        modes = dispatch_mode_count()
        executes = not (transforms_active() or modes)
        if executes and not (torch.is_grad_enabled() and any(map(_requires_grad, tensors))):
            with torch.no_grad():
                return self._execute(tensors)
        if executes:
            with self._again():
                return self._through_operator(tensors)
        shown = classes_shown() if modes else contextlib.nullcontext()
        # Below transforms other rules run too, and what these change is theirs.
        taken = contextlib.nullcontext if transforms_active() else self._taken_back
        # Without a mode, there are no symbolic tensors.
        with shown, taken(), holding(_retracing, again=self.opaque is None):
            return self._through_operator(tensors)

    def _through_operator(self, tensors: tuple[Any, ...]) -> Any:
        if self.opaque is None or transforms_active():
            return custom_function_call(self.function, *self.operands(*tensors))
        with _known_output(self.opaque):
            return custom_function_call(self.function, *self.operands(*tensors))

    def again(self, node: fx.Node, *tensors: Any) -> Any:
        """Call the Function on what its node was recorded for, wrapped for another level.

        Its rules see what the node computes; nothing new is recorded for its forward.
        """
        repeated = holding(_retracing, again=self.opaque is None)
        with autocast_as(self.autocast), repeated, _known_output(self.opaque, node):
            return custom_function_call(self.function, *self.operands(*tensors))

    def _execute(self, tensors: tuple[Any, ...]) -> Any:
        """Run forward on real tensors: nobody asks for a derivative of an executing graph."""
        opaque = self.opaque
        if opaque is None:
            return self.inline(*tensors)
        if opaque.pending is not None:
            (output,), opaque.pending = opaque.pending, None
            return output
        try:
            return opaque.conform(self.inline(*tensors), self.__name__)
        except OtherValueError:
            kept_values.change(origin_of(self.function))
            reason = f"{self.__name__} hands on something that isn't a tensor"
            raise PremiseFailed(reason, "another one") from None

    def inline(self, *tensors: Any) -> Any:
        """Run the Function's forward plainly, without its rules."""
        with autocast_as(self.autocast), self._again():
            return distinct(self.function.forward(*self.operands(*tensors)), tensors)

    def __repr__(self) -> str:
        """One line, for graph printouts."""
        return f"funcaot.{self.__name__}"


def _flat(operands: tuple[Any, ...]) -> tuple[Sequence[Any], Any]:
    """Operands, taken apart where the graph gives what is inside of them."""
    containers = [value for value in operands if isinstance(value, (list, tuple, dict))]
    if not any(isinstance(leaf, _GIVEN) for leaf in pytree.tree_leaves(containers)):
        return operands, None
    return pytree.tree_flatten(operands)


def distinct(output: Any, operands: Sequence[Any]) -> Any:
    """An operand that is returned as it is becomes a view of itself, as autograd makes it."""
    if isinstance(output, tuple):
        return tuple(__distinct_value(value, operands) for value in output)
    return __distinct_value(output, operands)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _tensors(output: Any) -> list[torch.Tensor]:
    outputs = output if isinstance(output, tuple) else (output,)
    return [value for value in outputs if isinstance(value, torch.Tensor)]


def __distinct_value(value: Any, operands: Sequence[Any]) -> Any:
    returned = isinstance(value, torch.Tensor) and any(value is operand for operand in operands)
    return value.view_as(value) if returned else value


class _Retracing(threading.local):
    known: Opaque | None = None
    node: fx.Node | None = None
    again = False

    def take(self) -> tuple[Opaque | None, fx.Node | None]:
        """What is known of the next Function that is recorded, for that one only."""
        found = self.known, self.node
        self.known = self.node = None
        return found


_retracing = _Retracing()


def proxy_rule(mode: ProxyTorchDispatchMode, function: type, *operands: Any) -> Any:
    """Record one node, and compute its value below the tracer."""
    if is_inlining():
        with mode:
            return inlined(function, operands)
    given = [value for value in _flat(operands)[0] if isinstance(value, _GIVEN)]
    proxies = [mode.tracer.unwrap_proxy(value) for value in given]
    captor = current_captor()
    known, recorded = _retracing.take()
    output, opaque = _value(captor, known, function, operands)
    # Else the tracer would take the operand for the node's output from here on, which is right
    # only for one that forward changes in place.
    if any(value is operand for value in _tensors(output) for operand in operands):
        dirty = {i for i, _ in dirty_inputs(function, operands)}
        output = distinct(output, [v for i, v in enumerate(operands) if i not in dirty])
    if recorded is not None:
        _stand_for(output, recorded, mode)
        return output
    node = FunctionNode(unread(function), operands, opaque)
    proxy = mode.tracer.create_proxy("call_function", node, tuple(proxies), {})
    # The tracer knows tensors and plain values; what generated rules pass along isn't either.
    tracked = pytree.tree_map(lambda v: v if isinstance(v, torch.Tensor) else None, output)
    track_tensor_tree(tracked, proxy, constant=None, tracer=mode.tracer)
    if captor is not None and opaque is not None and opaque is not known:
        captor.remember(tracked, opaque)
    return output


def _stand_for(output: Any, node: fx.Node, mode: ProxyTorchDispatchMode) -> None:
    """Let what a Function returned again stand for what its node computes."""
    whole = fx.Proxy(node, mode.tracer)
    if isinstance(output, torch.Tensor):
        track_tensor_tree(output, whole, constant=None, tracer=mode.tracer)
        return
    places = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    for index, value in enumerate(output):
        if isinstance(value, torch.Tensor):
            part: Any = whole
            proxy = fx.Proxy(places[index], mode.tracer) if index in places else part[index]
            track_tensor_tree(value, proxy, constant=None, tracer=mode.tracer)


class _NoDataAccess(TorchFunctionMode):
    """No tensor made inside shows its memory, which isn't there; writes are counted."""

    def __init__(self, function: type, operands: tuple[Any, ...]) -> None:
        """Watch what the forward of a function does with its operands."""
        super().__init__()
        self._writes = Writes(function, operands)

    def __exit__(self, *error: Any) -> None:
        """Say which operands were written to."""
        super().__exit__(*error)
        self._writes.pass_on()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = self._writes.call(func, args, kwargs or {})
        if isinstance(result, torch.Tensor):
            refuse_data_access(result)
        return result


@contextlib.contextmanager
def _known_output(opaque: Opaque | None, node: fx.Node | None = None) -> Iterator[None]:
    """While a node is traced again: how its output looks, and the node if it stays the same."""
    previous = _retracing.known, _retracing.node
    _retracing.known, _retracing.node = opaque, node
    try:
        yield
    finally:
        _retracing.known, _retracing.node = previous


def _value(
    captor: Captor | None, known: Opaque | None, function: type, operands: tuple[Any, ...]
) -> tuple[Any, Opaque | None]:
    """The traced value of a call; where forward can't be traced, why and how it looks."""
    if known is not None:
        return known.fake_output(operands), known
    rest = tuple(value for value in operands if not isinstance(value, _GIVEN))
    if captor is None:
        with again(function, rest) if _retracing.again else contextlib.nullcontext():
            return custom_function_call.below_autograd(function, *operands), None
    if getattr(function, "abstract", None) is not None:
        output = custom_function_call.below_autograd(function, *operands)
        reason = getattr(function, "funcaot_reason", "it has an abstract staticmethod")
        opaque = Opaque.of(output, reason)
        known_now = getattr(function, "funcaot_found", None)
        if known_now:
            opaque.pending = (known_now.pop(),)
        return output, opaque
    for value in operands:
        if isinstance(value, torch.Tensor):
            refuse_data_access(value)
    callers, forward = current_watch(), getattr(origin_of(function), "forward", None)
    watch = None
    if callers is not None:
        callers.called.append((forward, *rest))
        rules = (getattr(origin_of(function), "setup_context", None), *rest)
        watch = watch_of(forward, function, rules)
    looked = watch and watch.look()
    try:
        repeated = again(function, rest) if _retracing.again else contextlib.nullcontext()
        followed = contextlib.nullcontext() if watch is None else watch.following()
        with repeated, followed, _NoDataAccess(function, operands):
            output = custom_function_call.below_autograd(function, *operands)
        _refuse_wrappers(function, output, watch, looked)
        if all(isinstance(value, FakeTensor) for value in _tensors(output)):
            _note_run(callers, function, watch, is_traced=True)
            return output, None
        if watch is not None:
            watch.take_back(looked)
        error, reason = None, "forward: it returns or keeps a tensor that isn't an operand"
    except Exception as failure:
        keeps_graph = isinstance(failure, KeepsGraphError)
        if not (keeps_graph or is_untraceable_function(failure)):
            raise
        if watch is not None:
            watch.take_back(looked)
        if keeps_graph:
            raise
        error = failure
        reason = f"forward: {why_untraceable(error)}"
    _note_run(callers, function, watch, is_traced=False)
    return _run_for_real(captor, function, operands, reason, error)


def _note_run(
    callers: Watch | None, function: type, rule: Watch | None, *, is_traced: bool
) -> None:
    if callers is not None and rule is not None:
        callers.note_run(display_name(function), rule, is_traced=is_traced)


def _refuse_wrappers(function: type, output: Any, watch: Watch | None, looked: Any) -> None:
    """Refuse a node for what wraps other tensors; what forward counted is taken back.

    Raises:
        MakesWrapperError: If there is such an output.
    """
    if not any(map(is_wrapper_subclass, _tensors(output))):
        return
    if watch is not None:
        watch.take_back(looked)
    raise MakesWrapperError(
        f"{display_name(function)} returns a tensor subclass that wraps others, inside a "
        "torch.func transform.",
        remedy="make the wrapper outside of the Function.",
    )


def _run_for_real(
    captor: Captor,
    function: type,
    operands: tuple[Any, ...],
    reason: str,
    error: Exception | None,
) -> tuple[Any, Opaque]:
    if kept_values.have_changed(origin_of(function)):
        raise UnsupportedError(
            f"{display_name(function)} can't be traced ({reason}), and its forward hands on "
            "something that isn't a tensor, as another result or on ctx, which is another one in "
            "each call.",
            remedy="return and save it as a tensor (ctx.save_for_backward).",
        ) from error
    watch = current_watch()
    looked = watch and watch.look()
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    values = captor.real_values(tensors)
    known = values is not None
    if values is None:
        values = captor.stand_ins(tensors)
    rest = iter(values)
    filled = [next(rest) if isinstance(value, torch.Tensor) else value for value in operands]
    try:
        noting = contextlib.nullcontext() if watch is None else watch.noting_writes()
        output = captor.run(function, tuple(filled), noting)
    except Exception as failure:
        if known:
            if watch is not None:
                watch.take_back(looked)
            raise
        raise UnsupportedError(
            f"forward of {display_name(function)} can't be traced ({reason}), there are no real "
            "values to run it on, since the call is under a transform, and on a tensor of ones it "
            f"raised {type(failure).__name__}.",
            remedy="give the Function an `abstract` staticmethod: like forward, but returning "
            "tensors of the right metadata (torch.empty_like(x), ...).",
        ) from error
    _refuse_wrappers(function, output, watch, looked)
    opaque = Opaque.of(output, reason, filled)
    _refuse_arrays(function, output, watch, looked)
    opaque.keeps = any(
        kept_values.tells(value) for value in opaque.outputs if not isinstance(value, Layout)
    )
    if known:
        opaque.pending = (output,)
    if watch is not None:
        watch.leave(looked) if known else watch.take_back(looked)
    return opaque.fake_output(operands), opaque


def _refuse_arrays(function: type, output: Any, watch: Watch | None, looked: Any) -> None:
    """Refuse an array on ctx in the memory of what is returned, since it has to change with that.

    What forward counted is taken back.

    Raises:
        UnsupportedError: If there is one.
    """
    outputs = output if isinstance(output, tuple) else (output,)
    kept = [each for value in outputs for each in getattr(value, "told", ())]
    returned = [value for value in outputs if is_plain(value)]
    for low, high in map(_bounds, filter(_is_array, kept)):
        ends = [(x.data_ptr(), x.data_ptr() + reach(x) * x.element_size()) for x in returned]
        if any(low < end and start < high for start, end in ends):
            if watch is not None:
                watch.take_back(looked)
            raise UnsupportedError(
                f"{display_name(function)} runs on real values, and its forward keeps an array on "
                "ctx that shares memory with a tensor that it returns.",
                remedy="keep a copy of the array, or the tensor.",
            )


def _bounds(array: Any) -> tuple[int, int]:
    """Where the memory of an array begins and ends."""
    start = array.__array_interface__["data"][0]
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    if not array.size:
        return start, start
    low, high = (sum(bound(0, step) for step in steps) for bound in (min, max))
    return start + low, start + high + array.itemsize


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


custom_function_call.py_impl(ProxyTorchDispatchMode)(proxy_rule)
