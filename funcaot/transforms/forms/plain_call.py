"""Functions that are given or make what no node can hold, called in a capture as eager calls them.

A solver is given a function that closes over tensors of the program; a dropout is given an object
and keeps its mask there; a forward takes a tensor that wraps others, or makes one. No level can
unwrap such tensors, so the call isn't one node of a tape but what its forward does, with the
Function's own backward in autograd's record of it.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import torch
from torch.overrides import handle_torch_function

from funcaot._torch.calls.interception import past_interception
from funcaot._torch.levels.functorch import (
    FakeTensor,
    function_mode_active,
    pytree,
)
from funcaot._torch.tensors.classes.wrapping import is_wrapper_subclass
from funcaot._torch.tensors.sizes.number_log import all_settled
from funcaot._torch.tracing.tracing import is_untraceable_function, without_torch_function
from funcaot.base.scopes import holding
from funcaot.classes.containers import (
    ChangesGivenError,
    Contents,
    Given,
    holds_container,
    keeping,
    leaving,
)
from funcaot.classes.opaque import (
    Captor,
    KeepsGraphError,
    MakesWrapperError,
    Watch,
    current_captor,
    current_watch,
)
from funcaot.classes.premise import refused
from funcaot.classes.traits import display_name, has_backward, has_jvp, has_vmap
from funcaot.errors import UnsupportedError
from funcaot.operator.operator import custom_function_call
from funcaot.operator.plan import CallPlan
from funcaot.rules.operands.closures import Sealed, hollowed, tensors_on_the_way
from funcaot.rules.operands.copied_writes import Writes
from funcaot.rules.operands.entered import is_of_a_call
from funcaot.rules.operands.reached import may_hold, tensors_reached
from funcaot.rules.stores import watch_of
from funcaot.transforms.forms.acting import acting
from funcaot.transforms.forms.numbers import (
    NumberToldError,
    holds_number,
    with_tensors_for_numbers,
)
from funcaot.transforms.forms.own_graph import with_own_graph
from funcaot.transforms.forms.reaching_back import entering, reached_by_backward
from funcaot.transforms.forms.transposed import to_be_transposed

_BOXED = "boxed_grads_call"

__all__ = ["call_in_backward", "call_in_capture", "calling_plainly"]


class _ThisThread(threading.local):
    """What this thread's capture does.

    Attributes:
        tries: It is trying to call a Function as a node.
        plainly: It calls Functions as eager does, where their rules allow it.
    """

    tries = False
    plainly = False


_this_thread = _ThisThread()


def calling_plainly() -> AbstractContextManager[None]:
    """While a capture calls Functions as eager does: what forward computes is the caller's, too."""
    return holding(_this_thread, plainly=True)


def call_in_capture(plan: CallPlan, operands: tuple[Any, ...], otherwise: Any) -> Any:
    """Call a Function, as eager does if an operand holds tensors of the program or comes to.

    Args:
        plan: How the Function is called.
        operands: What it is given.
        otherwise: Calls it as a node, with its operands.
    """
    if holds_number(operands):
        function, rest = with_tensors_for_numbers(plan.function, *operands)
        if function is not plan.function:
            with suppress(NumberToldError):
                return custom_function_call(function, *rest)
    settled = tuple(map(all_settled, operands))
    if any(map(is_wrapper_subclass, pytree.tree_leaves(settled))):
        # Its class takes apart what forward and backward do, which no node of a graph would.
        return _plainly(plan, settled)

    if _this_thread.plainly and not has_jvp(plan.function) and not has_vmap(plan.function):
        otherwise = partial(_without_values, plan)

    def call(copies: tuple[Any, ...]) -> Any:
        with holding(_this_thread, tries=True):
            return _with_objects(plan, settled, lambda: otherwise(copies))

    try:
        if _this_thread.tries:  # The same call, which one of several modes has let through.
            return call(settled)
        return _with_containers(plan, operands, settled, call)
    except MakesWrapperError:
        return _plainly(plan, settled)
    except KeepsGraphError as error:
        if _this_thread.tries or has_jvp(plan.function) or has_vmap(plan.function):
            raise  # To where all modes are in force; these rules are a node's.
        try:
            return _plainly(plan, settled, leaves=error.leaves)
        except Exception as failure:
            if is_untraceable_function(failure):
                raise error from failure
            raise


def _without_values(plan: CallPlan, operands: tuple[Any, ...]) -> Any:
    """Call a Function as eager does that doesn't ask for values: of a solver all would be known."""
    with refused():
        return _plainly(plan, operands)


def call_in_backward(plan: CallPlan, operands: tuple[Any, ...], otherwise: Any) -> Any:
    """Call a Function in a backward that is traced, as eager does if it holds tensors or wrappers.

    Args:
        plan: How the Function is called.
        operands: What it is given.
        otherwise: Calls it as a node, with its operands.
    """
    if _this_thread.tries:  # A call in the capture itself, which goes on otherwise.
        return otherwise(operands)
    objects = [leaf for leaf in _leaves(operands) if may_hold(leaf)]
    if any(map(is_wrapper_subclass, pytree.tree_leaves(operands))):
        return _plainly(plan, operands)
    if objects and any(map(is_of_a_call, tensors_reached(objects))):
        return _plainly(plan, operands)
    try:
        return _with_containers(plan, operands, operands, otherwise)
    except MakesWrapperError:
        return _plainly(plan, operands)


def _with_objects(plan: CallPlan, operands: tuple[Any, ...], otherwise: Any) -> Any:
    """Call a Function that may be given objects with tensors inside."""
    objects = [leaf for leaf in _leaves(operands) if may_hold(leaf)]
    if not objects:
        return otherwise()
    captor = current_captor()
    if any(map(is_of_a_call, tensors_reached(objects))):
        if captor is None or not _enter_parameters(captor, operands):
            return _plainly(plan, operands)
        filled, written = _with_parameters(plan, operands)
        result = _plainly(plan, filled, operands)
        for writes in written:
            writes.repeat()
        return result
    before = [(value, dict(fields)) for value in objects if (fields := _fields(value)) is not None]
    watch = _watch_of(plan, operands)
    looked = watch and watch.look()
    with contextlib.nullcontext() if watch is None else watch.following():
        result = otherwise()
    written = [
        fields
        for value, fields in before
        if any(new is not fields.get(name, value) for name, new in vars(value).items())
    ]
    if not written or not any(
        isinstance(tensor, FakeTensor) for tensor in tensors_reached(objects)
    ):
        return result
    for value, fields in before:
        vars(value).clear()
        vars(value).update(fields)
    if watch is not None:
        watch.take_back(looked)
    return _plainly(plan, operands)


def _watch_of(plan: CallPlan, operands: tuple[Any, ...]) -> Watch | None:
    """What looks at changes that a Function's forward and its ``setup_context`` make."""
    forward, setup_context = (getattr(plan.function, n, None) for n in ("forward", "setup_context"))
    rest = tuple(value for value in operands if not isinstance(value, torch.Tensor))
    return watch_of(forward, plan.function, (setup_context, *rest))


def _with_containers(
    plan: CallPlan, operands: tuple[Any, ...], settled: tuple[Any, ...], call: Any
) -> Any:
    """Call a Function that may change containers that it is given, as eager calls one that does.

    Args:
        plan: How the Function is called.
        operands: What it is given.
        settled: The same with plain numbers.
        call: Calls it otherwise, with operands.
    """
    if not holds_container(operands):
        return call(settled)
    given, captor = Given(operands), current_captor()
    watch = _watch_of(plan, operands)
    looked = watch and watch.look()
    try:
        with contextlib.nullcontext() if watch is None else watch.following(), keeping(given):
            # A set from which something was taken gives its elements in another order afterwards.
            result = call(pytree.tree_map_only(set, set.copy, settled))
    except ChangesGivenError:
        if watch is not None:
            watch.take_back(looked)
        given.contents.put_back()
        if has_jvp(plan.function) or has_vmap(plan.function):
            raise  # These rules are a node's.
        return _plainly(plan, settled, operands)
    if given.kept and captor is not None:
        captor.kept.append((display_name(plan.function), given.contents))
    return result


def _copied(operands: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether a container among operands is another object among others."""
    found = Contents(others)
    return any(each not in found for each in Contents(operands))


def _uncopied(operands: tuple[Any, ...], entered: tuple[Any, ...]) -> tuple[Any, ...]:
    """What was entered, with the caller's containers in the places of equal copies."""
    return tuple(
        old if holds_container((old,)) and _are_alike(old, new) else new
        for old, new in zip(operands, entered, strict=True)
    )


def _are_alike(old: Any, new: Any) -> bool:
    """Whether two structures hold the same objects."""
    ours, theirs = pytree.tree_flatten(old), pytree.tree_flatten(new)
    return ours[1] == theirs[1] and all(a is b for a, b in zip(ours[0], theirs[0], strict=True))


def _leaving_given(function: type, operands: tuple[Any, ...]) -> type:
    """The same Function, whose backward may change nothing that others see."""
    theirs: Any = getattr(function, "backward")  # noqa: B009 (of a class that has one)
    rest = tuple(value for value in operands if not isinstance(value, torch.Tensor))
    name = display_name(function)

    def backward(ctx: Any, *gradients: Any) -> Any:
        inside = current_watch() is not None  # The captured function asks for it: it is its change.
        with contextlib.nullcontext() if inside else leaving(name, rest):
            return theirs(ctx, *gradients)

    named = {"backward": staticmethod(backward), "__module__": function.__module__}
    return type(function.__name__, (function,), named)


def _plainly(
    plan: CallPlan,
    operands: tuple[Any, ...],
    given: tuple[Any, ...] | None = None,
    leaves: tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """Call a Function as eager does.

    Args:
        plan: How it is called.
        operands: What it is given.
        given: What the caller gave, if that is something else.
        leaves: Where the graph that its forward keeps leads to besides, if it keeps one.

    Raises:
        ChangesGivenError: It changes a copy of a container of the caller's.
    """
    # Parameters among the operands are tensors of the program, too: autograd's node leads to them.
    (entered,) = _as_entered(operands)
    operands = _uncopied(operands, entered)
    copied = _copied(operands if given is None else given, operands)
    contents = Contents(operands) if copied else None
    captor = current_captor()
    if captor is None:
        return plan.native(*operands)
    captor.called_plainly = True
    function, reached = plan.function, reached_by_backward(plan.function)
    if holds_container(operands) and has_backward(function):
        function = _leaving_given(function, operands)
    if reached:
        _as_entered(reached)
        captor.closed_over.add_reader(partial(reached_by_backward, plan.function))
        function = entering(function, captor)
    if has_backward(function):
        if leaves is not None:
            function, operands = with_own_graph(function, operands, _as_entered(leaves)[0])
        elif not getattr(function, _BOXED, False):
            function = acting(function, plan.function)
        function = to_be_transposed(function)
    native = plan.native if function is plan.function else past_interception(function)
    with captor.calling(plan.function):
        result = native(*operands)
    if contents is not None and contents.changed():
        raise ChangesGivenError.of(display_name(plan.function))
    return result


def _enter_parameters(captor: Captor, operands: tuple[Any, ...]) -> bool:
    """Make inputs of the program of parameters that functions and objects hold.

    A backward that runs such a function is recorded when no call of the user's is in progress.

    Args:
        captor: The capture.
        operands: What a Function is given.

    Returns:
        Whether one of them is an operand, too, for whose gradient a backward may ask.
    """
    held = tuple(leaf for leaf in _leaves(operands) if may_hold(leaf))
    found = tensors_on_the_way(held, _is_parameter, captor.closed_over.note_path)
    given = {id(leaf) for leaf in pytree.tree_leaves(operands) if isinstance(leaf, torch.Tensor)}
    _as_entered(found)
    return any(id(each) in given for each in found)


def _with_parameters(
    plan: CallPlan, operands: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Sequence[Writes]]:
    """Operands whose functions hold the tape's tensors in the places of parameters.

    A backward that runs such a function is recorded when no call of the user's is in progress, and
    asks for gradients of the parameters among the operands: it has to compute with the same ones.

    Raises:
        UnsupportedError: Something in between can't be copied.
    """
    leaves, spec = pytree.tree_flatten(operands)
    places = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
    try:
        hollow, parameters, _ = hollowed(tuple(leaves[i] for i in places), _is_parameter)
    except Sealed as sealed:
        raise UnsupportedError(
            f"{display_name(plan.function)} is given a function that closes over a tensor of the "
            "compiled function and over parameters, through something that can't be copied: its "
            "backward would run that function on parameters that the program doesn't know.",
            remedy="pass the tensor that it closes over as an operand, or keep this call outside "
            "of the compiled function.",
        ) from sealed
    written: list[Writes] = []
    (entered,) = _as_entered(parameters)
    for i, copied in zip(places, hollow.filled(entered, written), strict=True):
        leaves[i] = copied
    return pytree.tree_unflatten(leaves, spec), written


def _is_parameter(tensor: torch.Tensor) -> bool:
    if is_of_a_call(tensor):
        return False
    with without_torch_function():  # A capture's mode would make it an input of the program.
        return tensor.requires_grad


def _as_entered(operands: tuple[Any, ...]) -> tuple[tuple[Any, ...]]:
    """Operands as every mode in force passes them on: a capture puts its own tensors there."""
    if function_mode_active():
        return handle_torch_function(_as_entered, (), operands)
    return (operands,)


def _leaves(operands: tuple[Any, ...]) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(operands) if not isinstance(leaf, torch.Tensor)]


def _fields(value: Any) -> dict[str, Any] | None:
    """What an object's own attributes are, if it is one that forward may write to."""
    if isinstance(value, (types.FunctionType, types.MethodType, torch.nn.Module)):
        return None
    fields = getattr(value, "__dict__", None)
    return fields if isinstance(fields, dict) else None


custom_function_call.register("in_capture")(call_in_capture)
custom_function_call.register("in_backward")(call_in_backward)
