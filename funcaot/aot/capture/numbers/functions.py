"""Functions that are given open numbers: ``calls`` asks here for a Function of tensors instead.

An operand that was a number is a tensor of no dimensions, so that each call of the program has its
own. The user's code sees a number all the same: an open one while it is traced, Python's own where
it runs on real values. What it keeps of them on ctx is kept as tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.autograd.autograd import (
    new_function_class,
    once_differentiable,
    once_differentiable_body,
)
from funcaot._torch.levels.functorch import fully_unwrapped, pytree
from funcaot._torch.tensors.sizes.number_log import NumberLog, all_settled
from funcaot._torch.tensors.sizes.open_numbers import OpenFloat
from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot._torch.tracing.tracing import is_symbolic, without_functional_wrapper
from funcaot.aot.signature.numbers import tensor_of_float
from funcaot.classes.context import OverlayContext, attributes_of
from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import (
    has_backward,
    has_jvp,
    has_vmap,
    is_old_style,
    origin_of,
    reverse_rule,
)
from funcaot.transforms.forms.numbers import NumberToldError

__all__ = ["of_tensors"]

Run = Callable[..., Any]
# What doesn't depend on a number.
_FIXED = (torch.Tensor, str, torch.dtype, torch.device, type(None))


class _LateLog(NumberLog):
    """What is asked of a Function's number: of the call's log, and later of the tensor itself.

    A derivative is traced when the program is made. What it asks that nobody has asked before can't
    be assumed any more, and is refused as a value that is read: then it runs on real ones.
    """

    def __init__(self, log: NumberLog, tensor: torch.Tensor) -> None:
        super().__init__()
        self._log, self._tensor = log, tensor

    def note(self, number: Any) -> None:
        if not self._log.has_ended:
            self._log.note(number)

    def refuse_late(self) -> None:
        """Nothing is late: the tensor is there."""

    def pin(self, name: str, value: float, sources: Set[Any]) -> None:
        self._refuse_to_tell()
        self._log.pin(name, value, sources)

    def fix(self, sources: Set[Any]) -> None:
        self._refuse_to_tell()
        self._log.fix(sources)

    def ask(self, condition: str, answer: bool) -> bool:
        if condition not in self._log.answers:
            self._refuse_to_tell()
            return self._log.ask(condition, answer)
        return self._log.answers[condition]

    def _refuse_to_tell(self) -> None:
        """Refuse as torch does what is asked of a symbolic tensor, once the capture is over."""
        if self._log.has_ended:
            self._tensor.item()
            raise SizeError("A number was asked for too late.", remedy="open_numbers=False.")


@dataclass(frozen=True, eq=False)
class _Known:
    """What a capture knows of a number beside its tensor; no container, so levels pass it on.

    Attributes:
        log: Where assumptions go.
        value: The number of the call that is captured.
        text: Python that computes it.
        sources: What it is computed from.
        kind: What it says that it is.
    """

    log: NumberLog
    value: float
    text: str
    sources: frozenset[Any]
    kind: type

    @property
    def told(self) -> tuple[Any, ...]:
        """Nothing that another call may have another of."""
        return ()

    def number(self, tensor: torch.Tensor) -> Any:
        """The number that a tensor stands for."""
        inner = without_functional_wrapper(fully_unwrapped(tensor))
        if not is_symbolic(inner):
            return self.kind(inner.item())
        log = _LateLog(self.log, tensor)
        made = OpenFloat(log, self.value, self.text, self.sources, lambda: tensor)
        return made.of_kind(self.kind)


def of_tensors(function: type, operands: Sequence[Any], run: Run) -> tuple[type, tuple[Any, ...]]:
    """A Function called with tensors for the open numbers among its operands.

    Args:
        function: The Function.
        operands: What it is given.
        run: Runs a function of torch that may be given open numbers, for a mode.

    Returns:
        The class that stands for it, and its operands.
    """
    places = {
        at: _Known(*value.known)
        for at, value in enumerate(operands)
        if type(value) is OpenFloat and not value.is_read
    }
    given = [
        value.tensor() if at in places else all_settled(value) if _holds_float(value) else value
        for at, value in enumerate(operands)
    ]
    seen = _Seen(function, places, run)
    namespace = {
        "funcaot_origin": origin_of(function),
        "__module__": function.__module__,
        **_forwards_of(seen),
        **_rules_of(seen),
    }
    made = new_function_class(function.__name__, function, namespace)
    return made, tuple(given)


def _holds_float(value: Any) -> bool:
    return any(type(leaf) is OpenFloat for leaf in pytree.tree_leaves(value))


@dataclass(frozen=True, eq=False)
class _Seen:
    """What the user's code of a Function sees.

    Attributes:
        function: The Function.
        places: What is known of its operands that are numbers.
        run: Runs a function of torch that may be given open numbers, for a mode.
        kept: Which numbers forward keeps on ctx, by the attribute and the leaf. A program that runs
            it on real values keeps the same ones.
    """

    function: Any
    places: Mapping[int, _Known]
    run: Run
    kept: dict[tuple[str, int], _Place] = field(default_factory=dict)

    def numbered(self, operands: Sequence[Any]) -> list[Any]:
        """Operands with numbers for their tensors."""
        own = list(operands)
        for at, known in self.places.items():
            own[at] = known.number(own[at])
        return own

    def given(self, operands: Sequence[Any], own: Sequence[Any]) -> list[_Given]:
        """The numbers among operands."""
        return [_Given(own[at], operands[at], known) for at, known in self.places.items()]


def _forwards_of(seen: _Seen) -> dict[str, Any]:
    """``forward``, and ``setup_context`` if there is one."""
    function = seen.function

    def forward(*operands: Any) -> Any:
        with _Numbers(seen.run):
            return function.forward(*seen.numbered(operands))

    def forward_with_ctx(ctx: Any, *operands: Any) -> Any:
        own = seen.numbered(operands)
        with _Numbers(seen.run):
            result = function.forward(ctx, *own)
            _keep_tensors(ctx, seen.given(operands, own), seen.kept)
        return result

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        own = seen.numbered(inputs)
        with _Numbers(seen.run):
            function.setup_context(ctx, tuple(own), output)
            _keep_tensors(ctx, seen.given(inputs, own), seen.kept)

    forward_with_ctx.funcaot_user = function.forward  # type: ignore[attr-defined]
    setup_context.funcaot_user = function.setup_context  # type: ignore[attr-defined]
    if is_old_style(function):
        return {"forward": staticmethod(forward_with_ctx)}
    return {"forward": staticmethod(forward), "setup_context": staticmethod(setup_context)}


def _rules_of(seen: _Seen) -> dict[str, Any]:
    """The rules that a Function has."""
    function, places = seen.function, seen.places

    def jvp(ctx: Any, *tangents: Any) -> Any:
        own = [None if at in places else tangent for at, tangent in enumerate(tangents)]
        with _Numbers(seen.run):
            return function.jvp(_WithNumbers(ctx), *own)

    def vmap(info: Any, in_dims: Any, *operands: Any) -> Any:
        with _Numbers(seen.run):
            return function.vmap(info, in_dims, *seen.numbered(operands))

    def reverse(rule: Run) -> Run:
        @functools.wraps(rule)
        def backward(ctx: Any, *cotangents: Any) -> Any:
            with _Numbers(seen.run):
                result = rule(_WithNumbers(ctx), *cotangents)
            found = result if isinstance(result, tuple) else (result,)
            if any(found[at] is not None for at in places if at < len(found)):
                raise SizeError("A number is given a gradient.", remedy="return None for it.")
            return result

        return backward

    rules: dict[str, Any] = {}
    if has_backward(function):
        rule = reverse_rule(function)
        once = once_differentiable_body(rule)
        made = reverse(rule) if once is None else once_differentiable(reverse(once))
        rules["vjp" if rule is function.vjp else "backward"] = staticmethod(made)
    if has_jvp(function):
        rules["jvp"] = staticmethod(jvp)
    if has_vmap(function):
        rules["vmap"] = staticmethod(vmap)
    return rules


class _WithNumbers(OverlayContext):
    """A ctx whose attributes hold tensors for numbers, as the user's rule wrote it."""

    def __getattr__(self, name: str) -> Any:
        return _restored(super().__getattr__(name))

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_funcaot_under"], name)


class _Given(NamedTuple):
    """A number that the user's code was given: its tensor, and what is known of it."""

    number: Any
    tensor: torch.Tensor
    known: _Known


class _Place(NamedTuple):
    """A number that is kept: what is known of it, and which of the given ones it is, if it is."""

    known: _Known
    given: int | None


def _keep_tensors(ctx: Any, given: Sequence[_Given], places: dict[tuple[str, int], _Place]) -> None:
    """Put a tensor, with what is known of it, in place of each number among a ctx's attributes.

    Args:
        ctx: What forward or ``setup_context`` wrote to.
        given: The numbers that it was given.
        places: Which numbers are kept; filled in a capture, and read by its program.

    Raises:
        NumberToldError: If code that ran on real values keeps what may depend on the numbers.
    """
    on_real = any(type(each.number) is not OpenFloat for each in given)
    is_later = on_real and current_captor() is None
    if not is_later:
        places.clear()
    for name, value in attributes_of(ctx).items():
        if name.startswith("_funcaot_"):
            continue
        leaves, tree = pytree.tree_flatten(value)
        if not is_later:
            found = {(name, at): _place_of(leaf, given) for at, leaf in enumerate(leaves)}
            places.update({at: place for at, place in found.items() if place is not None})
        kept = [_kept(leaf, given, places.get((name, at))) for at, leaf in enumerate(leaves)]
        if on_real and not is_later and not all(map(_is_fixed, kept)):
            raise NumberToldError(name)
        if any(map(_is_kept, kept)):
            setattr(ctx, name, pytree.tree_unflatten(kept, tree))


def _place_of(value: Any, given: Sequence[_Given]) -> _Place | None:
    """Which number a value is that forward keeps; None if it is something else."""
    for at, each in enumerate(given):
        if value is each.number:
            return _Place(each.known, at)
    return _Place(_Known(*value.known), None) if type(value) is OpenFloat else None


def _kept(value: Any, given: Sequence[_Given], place: _Place | None) -> Any:
    """What is kept in place of a value."""
    if place is None:
        return value
    if place.given is not None:
        return place.known, given[place.given].tensor
    return place.known, value.tensor() if type(value) is OpenFloat else tensor_of_float(value)


def _is_fixed(value: Any) -> bool:
    """Whether what a capture kept on real values is the same in another call of its program."""
    return isinstance(value, _FIXED) or _is_kept(value)


def _is_kept(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and type(value[0]) is _Known


def _restored(value: Any) -> Any:
    """What a ctx keeps, with numbers for their tensors."""
    if not isinstance(value, (tuple, list, dict)):
        return value
    if _is_kept(value):
        return value[0].number(value[1])
    leaves = pytree.tree_flatten(value)[0]
    if not any(type(leaf) is _Known for leaf in leaves):
        return value
    return pytree.tree_map(
        lambda each: each[0].number(each[1]) if _is_kept(each) else each, value, is_leaf=_is_kept
    )


class _Numbers(TorchFunctionMode):
    """Runs what takes open numbers with tensors for them, in the code of a Function."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._run(self, func, args, kwargs or {})
