"""Every operator of torch's ``op_db`` through ``funcaot.compile``, step by step."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.tensors.pytree import tree_flatten, tree_unflatten
from funcaot.api import compile as funcaot_compile
from funcaot.errors import CaptureWarning, FuncaotError
from funcaot.testing.compare import compare
from funcaot.testing.derivatives import EagerAutograd, differentiable_views
from funcaot.testing.program import TensorFunction, is_differentiable, tensor_leaves, weights_like
from funcaot.testing.torch_operators.torch_opinfo import full_name, samples_of
from funcaot.testing.transforms.reverse import in_layout

WORKS, RAISES, WRONG, NOT_EAGER = "works", "raises", "wrong", "not in eager"
# torch's forward and backward formulas disagree; the compiled jvp is that of the backward.
INCONSISTENT = "torch disagrees with itself"
SAMPLES = 2
UNINITIALIZED = ("empty", "new_empty")
SEED = 7


@dataclass(frozen=True)
class Outcome:
    """What happened to an operator in one step.

    Attributes:
        operator: Its full name.
        step: The name of the step.
        status: ``works``, ``raises``, ``wrong``, ``not in eager`` or, of jvp, that torch's own
            forward and backward formulas disagree and the compiled one follows the backward.
        detail: The error, or the difference.
    """

    operator: str
    step: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Call:
    """An operator as a function of tensors, with inputs for every step.

    Attributes:
        function: Takes the primals, returns a tuple of tensors.
        primals: None requires grad.
        argnums: Which of them are differentiated.
    """

    function: TensorFunction
    primals: tuple[Tensor, ...]
    argnums: tuple[int, ...]


def call_of(operator: Callable[..., Any], sample: Any) -> Call:
    """The operator on one sample, as a function of its tensors."""
    leaves, structure = tree_flatten((sample.values, sample.kwargs))
    places = tuple(index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    tensors = tuple(leaves[index] for index in places)
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def function(*primals: Tensor) -> tuple[Tensor, ...]:
        filled = list(constants)
        for place, primal in zip(places, primals, strict=True):
            filled[place] = primal
        args, kwargs = tree_unflatten(filled, structure)
        return tensor_leaves(operator(*args, **kwargs))

    argnums = tuple(index for index, tensor in enumerate(tensors) if tensor.requires_grad)
    return Call(function, tuple(tensor.detach() for tensor in tensors), argnums)


def forward(function: TensorFunction, call: Call) -> tuple[Tensor, ...]:
    """The plain call."""
    return function(*call.primals)


def gradients(
    function: TensorFunction, call: Call, *, layout: str = "contiguous", create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Eager backward with unequal cotangents of a layout."""
    inner = differentiable_views(call.primals, call.argnums)
    outputs = [out for out in function(*inner) if out.requires_grad and is_differentiable(out)]
    cotangents = [in_layout(weights_like(output.detach(), 0.2), layout) for output in outputs]
    grads = torch.autograd.grad(
        outputs,
        [inner[index] for index in call.argnums],
        cotangents,
        create_graph=create_graph,
        allow_unused=True,
    )
    if not create_graph:
        return tuple(grad for grad in grads if grad is not None)
    kept = [grad for grad in grads if grad is not None and grad.requires_grad]
    if not kept:
        return ()
    second = torch.autograd.grad(
        kept,
        [inner[index] for index in call.argnums],
        [weights_like(grad.detach(), 0.8) for grad in kept],
        allow_unused=True,
    )
    return tuple(grad for grad in second if grad is not None)


def backward(function: TensorFunction, call: Call) -> tuple[Tensor, ...]:
    """With contiguous cotangents."""
    return gradients(function, call)


def backward_odd(function: TensorFunction, call: Call) -> tuple[Tensor, ...]:
    """With permuted, padded cotangents."""
    return gradients(function, call, layout="strided")


def double_backward(function: TensorFunction, call: Call) -> tuple[Tensor, ...]:
    """The gradient of a weighted sum of the gradients."""
    return gradients(function, call, create_graph=True)


def vmap(function: TensorFunction, call: Call) -> tuple[Tensor, ...]:
    """Batched over the first argument only, as two copies of the sample."""
    batched = (torch.stack([call.primals[0], call.primals[0]]), *call.primals[1:])
    in_dims = (0, *[None] * (len(batched) - 1))
    return torch.func.vmap(function, in_dims=in_dims, randomness="different")(*batched)


def jvp(function: TensorFunction, call: Call) -> tuple[Tensor, ...]:
    """Along fixed tangents of every differentiable argument."""

    def active(*values: Tensor) -> tuple[Tensor, ...]:
        filled = list(call.primals)
        for index, value in zip(call.argnums, values, strict=True):
            filled[index] = value
        return tuple(out for out in function(*filled) if is_differentiable(out))

    primals = tuple(call.primals[index] for index in call.argnums)
    tangents = tuple(weights_like(primal, 0.9) for primal in primals)
    outputs, results = torch.func.jvp(active, primals, tangents)
    return (*outputs, *results)


STEPS: dict[str, Callable[[TensorFunction, Call], tuple[Tensor, ...]]] = {
    "forward": forward,
    "backward": backward,
    "odd tangents": backward_odd,
    "double backward": double_backward,
    "vmap": vmap,
    "jvp": jvp,
}


def steps_for(operator: Any, call: Call) -> Iterator[str]:
    """The steps that torch's database says eager supports."""
    yield "forward"
    if call.argnums and operator.supports_autograd:
        yield from ("backward", "odd tangents")
        if operator.supports_gradgrad:
            yield "double backward"
        if operator.supports_forward_ad:
            yield "jvp"
    if call.primals:
        yield "vmap"


def dtype_for(operator: Any, device: str) -> torch.dtype:
    """float64 where the operator has it, else the first dtype that it has."""
    supported = operator.supported_dtypes(device)
    preferred = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)
    return next((dtype for dtype in preferred if dtype in supported), next(iter(supported)))


def examine(
    operator: Any, *, backend: Any = "eager", device: str = "cpu", samples: int = SAMPLES
) -> tuple[Outcome, ...]:
    """Runs an operator through every step and compares with eager.

    Args:
        operator: A torch ``OpInfo``.
        backend: Of ``funcaot.compile``.
        device: Where the samples are.
        samples: How many of the operator's samples.

    Returns:
        One outcome per step: the worst of the samples.
    """
    name = full_name(operator)
    if not operator.supported_dtypes(device):
        return ()
    worst: dict[str, Outcome] = {}
    ranks = (NOT_EAGER, WORKS, INCONSISTENT, RAISES, WRONG)
    chosen = itertools.islice(samples_of(operator, device, dtype_for(operator, device)), samples)
    # What these return is whatever the memory held before.
    function = zeroed(operator.op) if operator.name.startswith(UNINITIALIZED) else operator.op
    for sample in chosen:
        call = call_of(function, sample)
        compiled = funcaot_compile(call.function, backend=backend)
        for step in steps_for(operator, call):
            outcome = replace(outcome_of(step, call, compiled), operator=name)
            before = worst.get(step)
            if before is None or ranks.index(outcome.status) > ranks.index(before.status):
                worst[step] = outcome
    return tuple(worst.values())


def zeroed(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose results have the right shapes and strides, and zeros."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs).zero_()

    return function


def outcome_of(step: str, call: Call, compiled: Callable[..., Any]) -> Outcome:
    """One step of one sample: eager first, then compiled."""
    run = STEPS[step]
    with warnings.catch_warnings():
        # Operators warn about deprecations and beta features; eager and compiled alike.
        warnings.simplefilter("ignore")
        # Then it wasn't compiled.
        warnings.simplefilter("error", CaptureWarning)
        try:
            torch.manual_seed(SEED)
            expected = run(call.function, call)
        except Exception as error:  # noqa: BLE001  (what eager can't do is not our gap)
            return Outcome("", step, NOT_EAGER, short(error))
        try:
            torch.manual_seed(SEED)
            actual = run(lambda *primals: tuple(compiled(*primals)), call)
        except Exception as error:  # noqa: BLE001  (recorded as the outcome)
            return Outcome("", step, RAISES, short(error))
    difference = compare(actual, expected)
    if difference.message is None:
        return Outcome("", step, WORKS)
    if step == "jvp" and compare(actual, transposed_backward(call)).message is None:
        return Outcome("", step, INCONSISTENT, difference.message)
    return Outcome("", step, WRONG, difference.message)


def transposed_backward(call: Call) -> tuple[Tensor, ...]:
    """What forward mode is according to torch's own backward formula."""
    tangents = tuple(weights_like(call.primals[index], 0.9) for index in call.argnums)
    outputs, results = EagerAutograd().jvp(call.function, call.primals, call.argnums, tangents)
    pairs = [pair for pair in zip(outputs, results, strict=True) if is_differentiable(pair[0])]
    return (*(output for output, _ in pairs), *(result for _, result in pairs))


def short(error: Exception) -> str:
    """The type of an exception and the first line of its message."""
    what = error.what if isinstance(error, FuncaotError) else str(error)
    lines = what.strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"
