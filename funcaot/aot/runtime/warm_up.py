"""Compiling what a call and its derivatives will need, for ``compiled.warm_up``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch

from funcaot._torch.distributed.alone import alone
from funcaot._torch.distributed.collectives import is_running
from funcaot._torch.distributed.fully_sharded import holds_gradients, without_other_ranks
from funcaot._torch.levels import functorch
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.pytree import tree_flatten, tree_map
from funcaot._torch.tensors.seeding import drawing_nothing
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.once_differentiated import FULLY_SHARDED
from funcaot.aot.state.first_state import with_states
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.classes.premise import PremiseFailed
from funcaot.errors import FuncaotError, UnsupportedError

Found: TypeAlias = tuple[Entry, tuple[torch.Tensor, ...]]
_After: TypeAlias = list[tuple[torch.Tensor, torch.Tensor | None]]


def on_the_cpu(leaf: Any) -> Any:
    """A tensor of zeros for one without memory, which is on the device ``meta``."""
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != "meta":
        return leaf
    if leaf.is_nested:
        raise UnsupportedError(
            "A nested tensor on the device meta doesn't say how long its parts are.",
            remedy="warm up with a nested tensor on the CPU.",
        )
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu")
    return made.zero_().requires_grad_(leaf.requires_grad)


def check(name: str, orders: Any) -> None:
    """Refuse a place or a number that it can't be done for.

    Raises:
        UnsupportedError: Inside of a transform or a capture.
        FuncaotError: For a number of orders that isn't one.
    """
    if functorch.transforms_active() or tracing.is_abstract():
        raise UnsupportedError(
            f"{name}.warm_up was called inside of a transform or of a capture.",
            remedy="compile the function under the transform, and warm that up.",
        )
    if type(orders) is not int or orders < 0:
        raise FuncaotError(
            f"{name}.warm_up can't take these orders.",
            expected="0 for the forward alone, 1 for its gradients, 2 for theirs, and so on",
            got=repr(orders),
            remedy="leave it out for the gradients.",
        )


@contextlib.contextmanager
def without_first_steps(name: str) -> Iterator[None]:
    """Refuse a function that has to be called once before it can be captured."""
    try:
        yield
    except FirstStepError as error:
        raise UnsupportedError(f"{name} {error}.", remedy="call it once.") from None


def warm(entry: Entry, leaves: Sequence[Any], lifted: Sequence[torch.Tensor], orders: int) -> None:
    """Compile a program's forward and its derivatives.

    The graphs run once, on the call's values, since a backward is compiled for what the forward
    keeps, as the compiler laid it out. Nothing is written to: they are functional, and effects
    come after them. Nothing is sent to other ranks either.

    Args:
        entry: The program.
        leaves: Flat leaves of a call.
        lifted: The tensors that it closes over.
        orders: How often to differentiate.
    """
    if entry.in_place is not None:
        _ = entry.in_place.program.lowered
        return
    segment = entry.forward.segment
    tape = entry.capture.tape
    nodes = getattr(tape, "graph", _NOTHING).nodes
    opaque = any(graphs.is_opaque(node) and not graphs.is_premise(node) for node in nodes)
    if not segment.output_nodes or entry.capture.regions or opaque:
        return
    drawn_from = vars(getattr(tape, "root", _NOTHING)).values()
    with drawing_nothing(drawn_from), torch.set_grad_enabled(entry.differentiable):
        try:
            with entry.leaving(), _alone():
                _run(entry, [*_given(entry, leaves), *lifted], orders)
        except PremiseFailed:
            pass  # Compiled, and left half way.
        finally:
            tape.forget_values()


def _alone() -> AbstractContextManager[Any]:
    """Let no graph wait for ranks that don't warm up now; what they would send isn't looked at."""
    return alone() if is_running() else contextlib.nullcontext()


class _Nothing:
    nodes = ()


_NOTHING: Any = _Nothing()


def _given(entry: Entry, leaves: Sequence[Any]) -> list[torch.Tensor]:
    given = entry.opened(leaves)
    return [given[slot.argument] for slot in entry.capture.inputs if slot.argument is not None]


def _run(entry: Entry, tensors: Sequence[torch.Tensor], orders: int) -> None:
    operands = [
        tensor.detach().requires_grad_(operand.leaf is not None)
        for tensor, operand in zip(tensors, entry.forward.segment.operands, strict=True)
    ]
    if not entry.differentiable:
        entry.functions.plain.forward(*operands)
        return
    made = _differentiable(entry.functions.keeping(operands))
    arguments = sum(slot.argument is not None for slot in entry.capture.inputs)
    choices = _choices(operands, arguments)
    with contextlib.suppress(_FreedError):
        for order in range(1, orders + 1):
            # The last gradient isn't differentiated again: that backward is another one.
            for first in _tangents(made, order):
                _differentiate(made, choices, first, order)


def _choices(operands: Sequence[torch.Tensor], arguments: int) -> list[list[torch.Tensor]]:
    """What gradients are asked of: all, as ``backward`` does, or arguments, as for forces.

    The last one is what gradients are asked of that are differentiated again.
    """
    every = [operand for operand in operands if operand.requires_grad]
    given = [operand for operand in operands[:arguments] if operand.requires_grad]
    return [every, given] if 0 < len(given) < len(every) else [every] if every else []


class _FreedError(Exception):
    """The function itself has run a backward through its result, and nobody can do it again."""


def _differentiate(
    made: Sequence[torch.Tensor],
    choices: Sequence[Sequence[torch.Tensor]],
    tangents: Sequence[torch.Tensor],
    orders: int,
) -> None:
    """Take gradients of gradients, each time of all of them.

    Raises:
        _FreedError: If autograd's graph isn't there any more, which eager says too.
    """
    for wanted in () if not made else choices if orders == 1 else choices[-1:]:
        try:
            found = torch.autograd.grad(
                made,
                wanted,
                tangents,
                retain_graph=True,
                create_graph=orders > 1,
                allow_unused=True,
            )
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            raise _FreedError from error
        if orders > 1:
            gradients = _differentiable(found)
            for following in _tangents(gradients, orders - 1):
                _differentiate(gradients, choices, following, orders - 1)


def _differentiable(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if value is not None and value.requires_grad]


def _ones(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.ones_like(value, memory_format=torch.contiguous_format) for value in values]


def _tangents(values: Sequence[torch.Tensor], orders: int) -> list[list[torch.Tensor]]:
    """Gradients as they usually arrive: dense ones, those of sums, with strides of 0, of squares.

    What is squared and differentiated again brings gradients that have a history. Of single numbers
    this is left out for the second order, where it would double what is compiled.
    """
    dense = _ones(values)
    sums = [_of_sum(value, ones) for value, ones in zip(values, dense, strict=True)]
    alike = all(one is other for one, other in zip(sums, dense, strict=True))
    found = [dense] if alike else [dense, sums]
    plain = all(value.layout is torch.strided for value in values)
    if plain and (orders > 2 or (orders == 2 and any(value.numel() > 1 for value in values))):
        with torch.enable_grad():
            found.append([value * 2 for value in values])
    return found


def _of_sum(value: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """The gradient of a sum of all that is in a tensor; ``ones`` if it isn't another one."""
    if value.layout is torch.jagged:
        with torch.enable_grad():
            leaf = value.detach().requires_grad_()
            return torch.autograd.grad(leaf.values().sum(), leaf)[0]
    if value.layout is torch.strided and value.numel() > 1:
        return value.new_ones(()).expand(value.shape)
    return ones


# --- whole training steps -------------------------------------------------------------------------


def warm_calls(name: str, find: Callable[[], Found], leaves: Sequence[object], orders: int) -> None:
    """Compile the program of a call, and that of the next one if it finds other ``.grad``.

    Args:
        name: The user's function.
        find: Finds or captures the program of a call as things are.
        leaves: Flat leaves of the call.
        orders: How often to differentiate.

    Raises:
        UnsupportedError: If the function has to be called once before it can be captured.
    """
    with contextlib.ExitStack() as made, without_first_steps(name):
        (entry, lifted), makes_state = with_states(find, made)
        after = _gradients_after(entry)
        # A call that makes an optimizer's state is eager's, and the next one finds its gradients.
        if not (after and makes_state):
            warm(entry, leaves, lifted, orders)
        if after:
            with _having(after):
                entry, lifted = find()
                warm(entry, leaves, lifted, orders)


def _gradients_after(entry: Entry) -> _After:
    """What is in the ``.grad`` of leaves after a call, where there was none or where none is left.

    The values are zeros.
    """
    gradients = entry.capture.gradients
    found: _After = []
    for gradient in () if gradients is None else gradients.gradients:
        tensor = None if gradient.tensor is None else gradient.tensor()
        if tensor is None or not gradient.assigned:
            continue
        if (gradient.value is None) != (gradient.lifted is None):
            made = None if gradient.value is None else _zeros(entry, gradient.value, tensor)
            found.append((tensor, made))
    return found


def _zeros(entry: Entry, value: int, leaf: torch.Tensor) -> torch.Tensor:
    """Zeros that look like what a call puts into ``.grad``."""
    result = entry.effects.outputs[entry.capture.tree.num_leaves + value].result
    if result is None or entry.sizes is not None:
        return torch.zeros_like(leaf)
    like = entry.forward.segment.outputs[result]
    shape, stride = tuple(map(int, like.shape)), tuple(map(int, like.stride()))
    return torch.empty_strided(shape, stride, dtype=like.dtype, device=leaf.device).zero_()


@contextlib.contextmanager
def _having(after: _After) -> Iterator[None]:
    """Give leaves these gradients, for a while."""
    before = [tensor.grad for tensor, _ in after]
    try:
        for tensor, gradient in after:
            tensor.grad = gradient
        yield
    finally:
        for (tensor, _), gradient in zip(after, before, strict=True):
            tensor.grad = gradient


# --- modules under fully_shard --------------------------------------------------------------------


def warm_sharded(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], orders: int
) -> None:
    """Compile what a step of a module under ``fully_shard`` will need, without other ranks.

    What is between its units isn't compiled, and only that says what they are given. So the module
    is called, on copies, and what that changes is put back.

    Args:
        module: The compiled module.
        args: Arguments; a tensor on the device ``meta`` stands for one on the CPU.
        kwargs: Keyword arguments.
        orders: 0 for the forward alone, 1 for its gradients.

    Raises:
        UnsupportedError: For a second order, and between the passes of one step.
        FuncaotError: If ``orders`` is no such number.
    """
    name = type(module).__name__
    check(name, orders)
    if orders > 1:
        raise UnsupportedError(
            f"{name}.warm_up was asked for derivatives of order {orders}, and {FULLY_SHARDED[0]}.",
            remedy=FULLY_SHARDED[1],
        )
    if holds_gradients(module):
        raise UnsupportedError(
            f"{name}.warm_up was called while gradients wait to be reduced.",
            remedy="warm up before the first step, or after a backward that reduces them.",
        )
    given = tree_map(on_the_cpu, (args, kwargs))
    with contextlib.ExitStack() as kept:
        kept.enter_context(StateKept())
        kept.enter_context(drawing_nothing())
        kept.enter_context(_alone())
        for tensor in module.buffers():
            kept.callback(_put_back, tensor, tensor.detach().clone())
        _without_gradients(kept, module)
        kept.enter_context(without_other_ranks(module))
        # As many calls as there are kinds of gradients: each backward is that of another one.
        count, index = 1, 0
        while index < count:
            made = _results(module, given)
            tangents = _tangents(made, 1) if made and orders else []
            if tangents:
                torch.autograd.backward(made, tangents[index])
            count, index = len(tangents), index + 1


def _results(module: torch.nn.Module, given: Any) -> list[torch.Tensor]:
    """What a call on copies returns that can be differentiated."""
    copies: dict[int, Any] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            made = leaf.detach().clone()
            copies[id(leaf)] = made.requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    args, kwargs = tree_map(copied, given)
    results = tree_flatten(module(*args, **kwargs))[0]
    return _differentiable([each for each in results if isinstance(each, torch.Tensor)])


def _put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if not torch.equal(tensor, value):
        with torch.no_grad():
            tensor.copy_(value)


def _without_gradients(kept: contextlib.ExitStack, module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        kept.callback(setattr, parameter, "grad", parameter.grad)
        parameter.grad = None
