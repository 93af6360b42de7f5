"""Rules of the table as kernels of autograd: there while a capture or ``install`` asks for them.

A kernel runs at one level of autograd, be it the base or a transform's, and the op goes on below
it as ever. So the value of an op, and what is recorded for it, never change; the rule's ops come
when its derivative is asked for.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from funcaot._torch.autograd.autograd import (
    SingleLevelFunction,
    compiled_autograd_key,
    forward_grad_enabled,
    gradients_are_differentiated,
    in_dual_level,
    is_zero_tensor,
)
from funcaot._torch.autograd.op_kernels import (
    KernelLibrary,
    OpOverload,
    devices,
    has_own_kernel,
    op_name,
    ops_of_users,
    run_below,
    schema_of,
    stays,
    torch_kernel,
)
from funcaot._torch.levels.functorch import single_level_functions_allowed
from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch
from funcaot.classes.opaque import current_captor
from funcaot.derivatives.arguments import flat, has_tensors, lacks, with_tensors
from funcaot.derivatives.batching import batched_kernel
from funcaot.derivatives.custom_ops import forward_rule
from funcaot.derivatives.table import Derivative, derivatives, on_change
from funcaot.derivatives.ways import gradients_at, transposed
from funcaot.errors import MissingRuleError, RuleError

__all__ = ["install_derivatives", "uninstall_derivatives", "with_derivatives"]

Maybe = Tensor | None


class _Call:
    """One call of an op, with slots in the place of tensors.

    Without a ``__dict__``, so that nobody looks for saved tensors in it.
    """

    __slots__ = ("args", "constant", "keyset", "kwargs", "places", "rule")

    def __init__(
        self, rule: Derivative, keyset: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self.rule, self.keyset = rule, keyset
        self.places: list[int | str | tuple[int, int]] = []
        self.args: list[Any] = []
        self.kwargs = dict(kwargs)
        names = [argument.name for argument in schema_of(rule.op).arguments]
        self.constant: dict[int, Any] = {}
        for index, value in enumerate(args):
            if names[index] in rule.constant:
                self.constant[index] = value
                self.args.append(None)
                continue
            self.args.append(list(value) if has_tensors(value) else value)
            if isinstance(value, Tensor):
                self.places.append(index)
                self.args[index] = None
            elif has_tensors(value):
                self.places += [(index, j) for j, v in enumerate(value) if isinstance(v, Tensor)]
                self.args[index] = [None if isinstance(v, Tensor) else v for v in value]
        for name, value in kwargs.items():
            if isinstance(value, Tensor):
                self.places.append(name)
                self.kwargs[name] = None

    def tensors(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
        """What is in the places."""
        found = []
        for place in self.places:
            if isinstance(place, str):
                found.append(kwargs[place])
            elif isinstance(place, int):
                found.append(args[place])
            else:
                found.append(args[place[0]][place[1]])
        return found

    def fill(self, tensors: Sequence[Maybe]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with tensors in their places."""
        args = [list(value) if isinstance(value, list) else value for value in self.args]
        kwargs = dict(self.kwargs)
        for place, tensor in zip(self.places, tensors, strict=True):
            if isinstance(place, str):
                kwargs[place] = tensor
            elif isinstance(place, int):
                args[place] = tensor
            else:
                args[place[0]][place[1]] = tensor
        return args, kwargs

    def with_rule(self, rule: Derivative) -> _Call:
        """The same call, differentiated otherwise."""
        other = copy.copy(self)
        other.rule = rule
        return other

    def below(self, tensors: Sequence[Tensor]) -> Any:
        """What the op gives one step below this level's autograd; once."""
        args, kwargs = self.fill(tensors)
        for index, value in self.constant.items():
            args[index] = value
        self.constant.clear()
        return run_below(self.rule.op, self.keyset, args, kwargs)


class _Recorded(SingleLevelFunction):
    """The op as one node of this level's autograd, whose backward is the rule's."""

    _compiled_autograd_key = staticmethod(compiled_autograd_key)

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Any:
        """The op itself."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        # Switched off here, where they must be on for the levels below.
        with torch.enable_grad(), forward_grad_enabled(True):
            result = call.below(tensors)
        outputs = result if isinstance(result, tuple | list) else (result,)
        ctx.save_for_backward(*tensors, *(outputs if call.rule.reads_results else ()))
        constant = [v for v in outputs if isinstance(v, Tensor) and not _moves(v)]
        ctx.mark_non_differentiable(*constant)
        return tuple(result) if isinstance(result, list) else result

    @staticmethod
    def backward(ctx: Any, *cotangents: Maybe) -> Any:  # type: ignore[override]
        """The rule's gradients."""
        kept, count = ctx.saved_tensors, len(ctx.call.places)
        needed = ctx.needs_input_grad[1:]
        return (None, *pulled(ctx.call, needed, cotangents, kept[:count], kept[count:]))


class _RecordedWithTangents(_Recorded):
    """The same, of operands that carry tangents at the level that records."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Any:
        """The op itself; what is kept has its tangents, which the gradients need."""
        result = _Recorded.forward(ctx, call, *tensors)
        ctx.save_for_forward(*tensors)
        outputs = result if isinstance(result, tuple) else (result,)
        ctx.moves = tuple(
            (v.shape, v.stride(), v.dtype) if isinstance(v, Tensor) and _moves(v) else None
            for v in outputs
        )
        return result

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Maybe) -> Any:  # type: ignore[override]
        """The rule's tangents."""
        call = ctx.call
        with forward_grad_enabled(True):
            if call.rule.jvp is not None:
                moved = _along(call, ctx.saved_tensors, tangents)
            elif call.rule.formula is not None:
                args, kwargs = call.fill(ctx.saved_tensors)
                outputs = call.rule.formula(*args, **kwargs)
                outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
                moved = tuple(map(_tangent, outputs))
            else:
                raise _missing(call.rule, "forward")
        # One for each output, lying as it lies; zeros for what the rule left out.
        moved += (None,) * (len(ctx.moves) - len(moved))
        like = ctx.saved_tensors[0]
        pairs = zip(moved, ctx.moves, strict=False)
        found = tuple(None if place is None else _laid(t, like, *place) for t, place in pairs)
        return found if len(found) != 1 else found[0]


def _laid(tangent: Maybe, like: Tensor, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    """A tangent with an output's strides; zeros for None."""
    if tangent is None:
        return like.new_empty_strided(shape, strides, dtype=dtype).zero_()
    if tangent.stride() == strides:
        return tangent
    # The tangent may be of a batch that the operand isn't of; and may have no memory.
    like = like if is_zero_tensor(tangent) else tangent
    return like.new_empty_strided(shape, strides, dtype=dtype).copy_(tangent)


def _along(call: _Call, duals: Sequence[Tensor], tangents: Sequence[Maybe]) -> tuple[Maybe, ...]:
    """What a rule's ``jvp`` gives for a recorded call."""
    args, kwargs = call.fill([forward_ad.unpack_dual(tensor).primal for tensor in duals])
    along, named = call.fill(tangents)
    given = [_only_tensors(value) for value in along]
    if any(isinstance(value, Tensor) for value in named.values()):
        given.append({name: _only_tensors(value) for name, value in named.items()})
    pushed = call.rule.jvp(tuple(given), *args, **kwargs)  # type: ignore[misc]
    return tuple(pushed) if isinstance(pushed, tuple | list) else (pushed,)


def _only_tensors(value: Any) -> Any:
    """What moves of an argument: a tensor, or a list with None for the rest."""
    if isinstance(value, list) and has_tensors(value):
        return [_only_tensors(item) for item in value]
    return value if isinstance(value, Tensor) else None


def pulled(
    call: _Call,
    needed: Sequence[bool],
    cotangents: Sequence[Maybe],
    tensors: Sequence[Tensor],
    results: Sequence[Tensor] = (),
) -> list[Maybe]:
    """One gradient per tensor of a call; results are what it returned, if the rule reads them."""
    rule = call.rule
    if rule.vjp is None:
        if rule.formula is not None:
            return _pulled_by_formula(call, needed, cotangents, tensors)
        if rule.reverse:
            raise _missing(rule, "reverse")
        return _pulled_by_torch(call, needed, cotangents, tensors)
    args, kwargs = call.fill(tensors)
    options: dict[str, Any] = {"results": tuple(results)} if rule.reads_results else {}
    by_place = dict(zip(call.places, needed, strict=True))
    if rule.selective:
        names = [argument.name for argument in schema_of(rule.op).arguments]
        options["wanted"] = [
            by_place.get(index, by_place.get(name, False)) for index, name in enumerate(names)
        ]
    given = rule.vjp(tuple(cotangents), *args, **kwargs, **options)
    given = tuple(given) if isinstance(given, tuple | list) else (given,)
    named: dict[str, Maybe] = {}
    if given and isinstance(given[-1], dict):
        *given, named = given
    if len(given) > len(args):
        raise RuleError(
            f"The vjp registered for {op_name(rule.op)} returned too many gradients.",
            expected=f"{len(args)}, one per positional argument, None for zero",
            got=str(len(given)),
            remedy="leave out what belongs to no argument.",
        )
    found: list[Maybe] = []
    for place, wanted, tensor in zip(call.places, needed, tensors, strict=True):
        gradient = None
        if isinstance(place, str):
            if wanted and place not in named:
                raise _missing(rule, f"reverse (by its keyword {place})")
            gradient = named.get(place)
        elif isinstance(place, int):
            gradient = given[place] if place < len(given) else None
        elif place[0] < len(given) and given[place[0]] is not None:
            gradient = given[place[0]][place[1]]
        if gradient is not None and gradient.shape != tensor.shape:
            raise RuleError(
                f"The vjp registered for {op_name(rule.op)} returned a gradient of another shape.",
                expected=f"{tuple(tensor.shape)} for argument {place}",
                got=str(tuple(gradient.shape)),
                remedy="reduce it to the argument's shape, with sum_to_size for example.",
            )
        found.append(gradient if wanted else None)
    return found


class _ByTorch(threading.local):
    """The op whose derivative is torch's in this thread."""

    op: Any = None


_by_torch = _ByTorch()


@contextmanager
def _formula_of(rule: Derivative, again: bool) -> Iterator[Callable[..., Any]]:
    """What is differentiated for an op's gradients."""
    if again or not rule.later:
        yield rule.formula  # type: ignore[misc]
        return
    before, _by_torch.op = _by_torch.op, rule.op
    try:
        yield rule.op
    finally:
        _by_torch.op = before


def _pulled_by_formula(
    call: _Call, needed: Sequence[bool], cotangents: Sequence[Maybe], tensors: Sequence[Tensor]
) -> list[Maybe]:
    """The gradients by differentiating the formula, which is run once more for it."""
    places = [index for index, wanted in enumerate(needed) if wanted]

    def outputs(*filled: Tensor) -> Any:
        args, kwargs = call.fill(filled)
        return formula(*args, **kwargs)

    with _formula_of(call.rule, gradients_are_differentiated()) as formula:
        by_place = gradients_at(places, outputs, tensors, cotangents)
    return [by_place.get(index) for index in range(len(tensors))]


def _pulled_by_torch(
    call: _Call, needed: Sequence[bool], cotangents: Sequence[Maybe], tensors: Sequence[Tensor]
) -> list[Maybe]:
    """The gradients and their tangents where reverse mode is torch's and forward mode the rule's.

    Torch's formula isn't asked for tangents, as it has none. It is differentiated once more.
    """
    arriving = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
    duals = [*(cotangents[i] for i in arriving), *tensors]

    def gradients(*values: Tensor) -> tuple[Maybe, ...]:
        sent: list[Maybe] = [None] * len(cotangents)
        for index, value in zip(arriving, values, strict=False):
            sent[index] = value
        formula = replace(call.rule, formula=call.rule.op)
        again = call.with_rule(formula)
        return tuple(_pulled_by_formula(again, needed, sent, values[len(arriving) :]))

    pairs = [forward_ad.unpack_dual(value) for value in duals]  # type: ignore[arg-type]
    primals = [pair.primal for pair in pairs]
    found = gradients(*primals)
    pushed = transposed(gradients)([pair.tangent for pair in pairs], *primals)
    return [
        gradient if gradient is None or tangent is None else forward_ad.make_dual(gradient, tangent)
        for gradient, tangent in zip(found, pushed, strict=True)
    ]


def _moves(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _missing(rule: Derivative, mode: str) -> MissingRuleError:
    return MissingRuleError(
        f"{op_name(rule.op)} was differentiated in {mode} mode and has no rule for it",
        expected="a rule given to funcaot.register_derivative",
        got="jvp only" if rule.vjp is None and rule.jvp is not None else "vjp only",
        remedy="register formula, which serves for both, or the other rule.",
    )


def _pushed(rule: Derivative, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The op on dual tensors."""
    if rule.jvp is None:
        if rule.formula is None:
            raise _missing(rule, "forward")
        return rule.formula(*args, **kwargs)
    primals = [_primal(value) for value in args]
    tangents: list[Any] = [_tangents_of(value) for value in args]
    if any(_tangent(value) is not None for value in kwargs.values()):
        tangents.append({name: _tangent(value) for name, value in kwargs.items()})
    named = {name: _primal(value) for name, value in kwargs.items()}
    result = run(*primals, **named)
    pushed = rule.jvp(tuple(tangents), *primals, **named)
    single = isinstance(result, Tensor)
    pushed = pushed if isinstance(pushed, tuple | list) else (pushed,)
    outputs = (result,) if single else tuple(result)
    dual = tuple(  # an op may leave out what it wasn't asked for
        output if tangent is None or output is None else forward_ad.make_dual(output, tangent)
        for output, tangent in zip(outputs, (*pushed, *[None] * len(outputs)), strict=False)
    )
    return dual[0] if single else dual


def _primal(value: Any) -> Any:
    if has_tensors(value):
        return [_primal(item) for item in value]
    return forward_ad.unpack_dual(value).primal if isinstance(value, Tensor) else value


def _tangents_of(value: Any) -> Any:
    """A tangent of an argument, or a list of them, None where nothing moves."""
    if not has_tensors(value):
        return _tangent(value)
    found = [_tangent(item) for item in value]
    return None if all(tangent is None for tangent in found) else found


def _tangent(value: Any) -> Maybe:
    if not isinstance(value, Tensor) or not _moves(value):
        return None
    return forward_ad.unpack_dual(value).tangent


def _autograd_kernel(rule: Derivative, original: Callable[..., Any] | None) -> Callable[..., Any]:
    """What runs for an op at the autograd key of a device."""
    kinds = [str(argument.type) for argument in schema_of(rule.op).arguments]

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        args = with_tensors(kinds, args)
        given = flat(args, kwargs)
        needed = torch.is_grad_enabled() and any(v.requires_grad for v in given)
        moving = in_dual_level() and any(_tangent(v) is not None for v in given)
        pushed_by_rule = moving and rule.jvp is not None
        if rule.later and (_by_torch.op is rule.op or not (needed or pushed_by_rule)):
            return original(keyset, *args, **kwargs)  # type: ignore[misc]
        if moving and not needed:
            return _pushed(rule, rule.op, args, kwargs)
        if not moving and not rule.reverse and not lacks(rule, args, kwargs):
            return original(keyset, *args, **kwargs)  # type: ignore[misc]
        if not needed:
            return run_below(rule.op, keyset, args, kwargs)
        call = _Call(rule, keyset, args, kwargs)
        tensors = call.tensors(args, kwargs)
        node = _RecordedWithTangents if moving else _Recorded
        with _as_a_call(), single_level_functions_allowed():
            return node.apply(call, *tensors)  # type: ignore[attr-defined]

    return kernel


def _as_a_call() -> AbstractContextManager[None]:
    """Tell a capture that grad mode is switched off by a Function's forward, not by the user."""
    captor = current_captor()
    return nullcontext() if captor is None else captor.calling()


class _Installed:
    """The kernels of the whole table."""

    def __init__(self) -> None:
        self._library = KernelLibrary()
        self._kernels: dict[Any, dict[str, Any]] | None = None
        self._staying: dict[Any, dict[str, Any]] = {}
        on_change(self._changed)

    def change(self) -> None:
        """Register them, if they aren't."""
        if self._library.is_installed:
            return
        if self._kernels is None:
            self._kernels = {rule.op: _kernels_of(rule) for rule in derivatives()}
        # Looked for each time, as torch tells nobody of a new op.
        others = {op: self._of_other(op) for op in ops_of_users() if op not in self._kernels}
        self._library.install({**self._kernels, **others})

    def _of_other(self, op: OpOverload) -> dict[str, Any]:
        """The kernels of an op that the table has no rule for."""
        kernels = self._staying.get(op)
        if kernels is None:
            kernels = _kernels_of(forward_rule(op))
            if stays(op):
                self._staying[op] = kernels
        return kernels

    def undo(self) -> None:
        """Bring torch's own back."""
        self._library.remove()

    def _changed(self) -> None:
        self._kernels = None
        if self._library.is_installed:
            self._library.remove()
            self.change()


def _kernels_of(rule: Derivative) -> dict[str, Callable[..., Any]]:
    kernels: dict[str, Callable[..., Any]] = {}
    composed = rule.formula is None and rule.vjp is None and rule.jvp is None
    for device in () if composed else devices():
        key = f"Autograd{device}"
        if has_own_kernel(rule.op, key) and (rule.later or not rule.reverse):
            continue  # It is composed of other ops, or knows its derivative itself.
        original = torch_kernel(rule.op, key)
        if original is not None:
            kernels[key] = _autograd_kernel(rule, original)
    if rule.batched is not None:
        original = torch_kernel(rule.op, "FuncTorchBatched")
        kernels["FuncTorchBatched"] = batched_kernel(rule, original)
    return kernels


_installed = _Installed()
_patch = SharedPatch(_installed.change, _installed.undo, lasts=True)


def with_derivatives() -> AbstractContextManager[None]:
    """Ops of the table have their derivatives inside, if the patch isn't switched off."""
    return applied("derivatives", _patch.used, None)


install_derivatives = _patch.install
uninstall_derivatives = _patch.uninstall
