"""Turn what a user points at into a record to test: its name, samples and oracle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.tensors.pytree import tree_flatten
from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.errors import FuncaotError
from funcaot.operator.operator import custom_function_call
from funcaot.testing.check.variants import explored
from funcaot.testing.records import FunctionInfo, Sample, as_sample, opinfo
from funcaot.testing.samples import TensorMaker

# What is tried for a parameter that is annotated as a number.
NUMBERS: dict[Any, Any] = {int: 1, float: 0.5, bool: True, "int": 1, "float": 0.5, "bool": True}
GUESSES: tuple[tuple[int, ...], ...] = ((2, 3), (3,), (), (3, 3), (2, 3, 4))


def is_function_class(target: Any) -> bool:
    """Whether this is an ``autograd.Function`` class."""
    return isinstance(target, type) and issubclass(target, torch.autograd.Function)


def eager_apply(function: Any) -> Callable[..., Any]:
    """The Function as plain eager torch calls it, without funcaot's operator."""
    # The apply of the base class: what a class that knows nothing of funcaot does.
    plain = torch.autograd.Function.__dict__["apply"]
    return plain.__get__(None, function)


def refuse_other(target: Any) -> None:
    """Checks that this is something to check.

    Raises:
        FuncaotError: It is neither a Function class nor a callable of tensors.
    """
    instance = isinstance(target, torch.autograd.Function)
    if callable(target) and not instance:
        return
    raise FuncaotError(
        f"funcaot.testing can't check {target!r}.",
        expected="an autograd.Function class, or a callable of tensors",
        got=f"an instance of {type(target).__name__}",
        remedy=f"pass the class {type(target).__name__} itself."
        if instance
        else "pass the class itself (not its apply's result).",
    )


def refuse_undifferentiable(target: Any, samples: Sequence[Sample]) -> None:
    """Checks that each sample has an argument to differentiate with respect to.

    Raises:
        FuncaotError: One has none.
    """
    for sample in samples:
        if has_gradient(sample):
            continue
        nested = any(isinstance(leaf, Tensor) for leaf in tree_flatten(sample.values)[0])
        inside = nested and not any(isinstance(value, Tensor) for value in sample.values)
        raise FuncaotError(
            f"{getattr(target, '__name__', target)} was given no argument to differentiate.",
            expected="at least one floating-point tensor among its arguments",
            got=", ".join(map(described, sample.values)),
            remedy="check a function that takes the tensors and puts them into the container."
            if inside
            else "pass floating-point tensors, for example torch.rand(3).",
        )


def described(value: Any) -> str:
    """An argument in a word or two."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def info_of(target: Any, samples: Sequence[Sample]) -> FunctionInfo:
    """The record of a Function class or of a callable of tensors."""
    if is_function_class(target):
        return opinfo(target, samples, op=lambda *args: custom_function_call(target, *args))
    return opinfo(target, samples)


def with_oracle(info: FunctionInfo, ref: Callable[..., Any] | None) -> FunctionInfo:
    """Adds the oracle for transforms: the user's reference, or the Function in eager torch."""
    if ref is not None:
        return replace(info, ref=ref)
    if info.function is None:
        # Any callable: eager autograd is right by the "gradient" row, or that row says otherwise.
        plain = info.op.function if isinstance(info.op, CompiledFunction) else info.op
        return replace(info, ref=plain)
    has_backward = info.supports_autograd and not getattr(
        info.function, "generate_backward_rule", False
    )
    return replace(info, ref=eager_apply(info.function)) if has_backward else info


def as_samples(inputs: Any) -> list[Sample]:
    """The samples of ``check``'s ``inputs``: one call's arguments, or a list of calls."""
    values = list(inputs) if isinstance(inputs, list) else [inputs]
    samples = []
    for index, value in enumerate(values):
        sample = as_sample(value, f"sample{index}")
        samples.append(sample if has_gradient(sample) else requiring_grad(sample))
    return samples


def has_gradient(sample: Sample) -> bool:
    """Whether some tensor of the sample requires grad."""
    return any(isinstance(value, Tensor) and value.requires_grad for value in sample.values)


def requiring_grad(sample: Sample) -> Sample:
    """Every floating-point tensor of the sample requires grad, when the user marked none."""

    def marked(value: Any) -> Any:
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            return value.detach().clone().requires_grad_()
        return value

    values = tuple(marked(value) for value in sample.values)
    return replace(sample, input=values[0] if values else None, args=values[1:])


@dataclass(frozen=True)
class Found:
    """The samples of a check.

    Attributes:
        samples: What the rows are tried on.
        left_out: Kinds of arguments that the target doesn't take, and why.
        guessed: Nobody gave arguments.
    """

    samples: tuple[Sample, ...]
    left_out: tuple[str, ...] = ()
    guessed: bool = False


def find_samples(target: Any, inputs: Any, seed: int, *, explore: bool | None = None) -> Found:
    """The samples that were given or guessed, and variants of them that the target takes.

    Args:
        target: A Function class or a callable.
        inputs: What ``check`` was given.
        seed: Of guessed values.
        explore: Whether to try variants; None: of what was guessed only.
    """
    guessed = inputs is None
    samples = guess_samples(target, seed) if guessed else as_samples(inputs)
    if not (guessed if explore is None else explore) or not any(map(has_gradient, samples)):
        return Found(tuple(samples), guessed=guessed)
    base = next((sample for sample in samples if has_gradient(sample)), samples[0])
    call = caller(target)
    taken, left_out = explored(base, lambda values: problem_of(call, values))
    return Found((*samples, *taken), tuple(left_out), guessed)


def caller(target: Any) -> Callable[..., Any]:
    """What a call of the target goes through."""
    if is_function_class(target):
        return lambda *args: custom_function_call(target, *args)
    return target


def guess_samples(target: Any, seed: int) -> list[Sample]:
    """Finds inputs that the target accepts: small float64 tensors of one shape.

    Parameters that are annotated as numbers get numbers.

    Args:
        target: A Function class or a callable.
        seed: Of the random values, which are positive so that logarithms and roots work.

    Returns:
        Up to three samples of different shapes and layouts.

    Raises:
        FuncaotError: No guess was accepted; the message says how to give inputs.
    """
    parameters = required_arguments(target)
    call = caller(target)
    found: list[Sample] = []
    problems: list[str] = []
    for shape in GUESSES:
        make = TensorMaker("cpu", torch.float64, seed)
        values = [
            make(*shape, low=0.3, high=1.7) if number is None else number for number in parameters
        ]
        problem = problem_of(call, values)
        if problem is None:
            found.append(Sample(values[0], tuple(values[1:]), name=f"shape{list(shape)}"))
        else:
            count = sum(number is None for number in parameters)
            problems.append(f"{count} float64 tensors of shape {list(shape)}: {problem}")
    if not found:
        name = getattr(target, "__name__", "F")
        in_place = any("leaf Variable" in problem for problem in problems)
        raise FuncaotError(
            f"funcaot.testing can't guess inputs for {getattr(target, '__name__', target)}.",
            expected="a Function of float tensors of one small shape",
            got="; ".join(problems[:2]),
            remedy="it works in place: check a function of copies, "
            f"lambda x: {name}.apply(x.clone())."
            if in_place
            else 'give inputs: check(F, inputs=(x, 2)) or --inputs "torch.rand(3, 4), 2".',
        )
    return found[:3]


def required_arguments(target: Any) -> list[Any]:
    """For each positional argument without a default: a number to try, or None for a tensor."""
    function = target.forward if is_function_class(target) else target
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [None]
    old_style = is_function_class(target) and (
        target.setup_context is torch.autograd.Function.setup_context
    )
    parameters = parameters[1:] if old_style else parameters
    needed = [
        NUMBERS.get(parameter.annotation) if isinstance(parameter.annotation, type | str) else None
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    return needed or [None]


def problem_of(call: Callable[..., Any], values: Iterable[Any]) -> str | None:
    """Why a call with these values is no use, or None."""
    try:
        outputs = call(*values)
    except Exception as error:  # noqa: BLE001  (any exception of user code: a wrong guess)
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    tensors = [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, Tensor)]
    if not tensors:
        return "no tensor was returned"
    finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
    return None if finite else "the result is not finite"
