"""Rows about derivatives: each order, in either mode, against slopes of the order below.

Nothing is assumed about the order below but that it can be called, so an odd rule is compared with
its own derivative, and a mistake is seen at the order that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from funcaot.testing.check.probes.judgement import (
    NOTED,
    is_between,
    judged,
    relative_errors,
    verdict,
)
from funcaot.testing.check.probes.measured import Measured
from funcaot.testing.check.probes.modes import in_forward, in_reverse, in_reverse_by_levels
from funcaot.testing.check.probes.probe import EVERY, SMALLEST, Finding, Probe
from funcaot.testing.check.probes.slopes import Slope
from funcaot.testing.derivatives import EagerAutograd, FiniteDifferences, differentiable_views
from funcaot.testing.generator import seed
from funcaot.testing.program import (
    Program,
    TensorFunction,
    is_differentiable,
    program_of,
    weights_like,
)
from funcaot.testing.records import FunctionInfo, Sample

# Of a large argument, as many elements are measured, evenly spread.
MOST_ELEMENTS = 48
# Elements that are smaller than the first steps of a stencil.
TINY = 1e-2
INTENDED = (
    "if the rule is not meant to be the derivative, give its intended value by ref=... (--ref)."
)
IMPRECISE = (
    "compute the rule in the dtype of its arguments; give an approximation that is meant by "
    "ref=... (--ref)."
)
HIGHER = (
    "in backward and jvp, use saved inputs and outputs (not detached, not intermediates of "
    "forward), or decorate backward with once_differentiable so that nobody trusts it."
)


def compare_reverse(function: TensorFunction, program: Program, remedy: str) -> Finding | None:
    """The gradient of a function against its slopes, element by element."""
    seed()
    gradient = in_reverse(function, program.argnums)
    actual = gradient(*[primal.clone() for primal in program.primals])
    box = Measured.at(function, program.primals)
    largest, detail = 0.0, ""
    for index, grad in zip(program.argnums, actual, strict=True):
        error, text = one_argument(box, index, grad.detach())
        if error > largest or not detail:
            largest, detail = error, text
    gradients = {i: grad.detach() for i, grad in zip(program.argnums, actual, strict=True)}
    joint = joint_error(box, gradients) if len(gradients) > 1 and largest <= NOTED else 0.0
    if joint > NOTED:
        largest = joint
        detail = (
            f"the gradients of arguments {', '.join(map(str, gradients))}, summed, aren't the "
            "slope along all of them at once, although each could be right by itself (are there "
            "ties?)"
        )
    return verdict(largest, detail, narrowest(program), (remedy, IMPRECISE))


def narrowest(program: Program) -> torch.dtype:
    """The dtype of the differentiated arguments that says how small an error can be seen."""
    dtypes = [program.primals[index].dtype for index in program.argnums]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def one_argument(box: Measured, index: int, actual: Tensor) -> tuple[float, str]:
    """The largest relative error of the gradient of one argument, and where it is."""
    primal = box.primals[index]
    if actual.shape != primal.shape:
        shapes = f"of the shape {list(actual.shape)}, expected {list(primal.shape)}"
        return float("inf"), f"the gradient of argument {index} is {shapes}"
    places = spread(primal.numel())
    if not places:
        return 0.0, ""
    readings = [box.element(index, place) for place in places]
    values = torch.stack([value for value, _ in readings])
    bars = torch.stack([bar for _, bar in readings])
    chosen = elements(actual, places)

    def sides_at(position: int) -> list[tuple[Tensor, Tensor]]:
        return box.sides_of_element(index, places[position])

    errors, _ = judged(chosen, values, bars, sides_at)
    worst = int(errors.argmax())
    joint = joint_error(box, {index: actual}) if float(errors[worst]) <= NOTED else 0.0
    if joint > NOTED:
        return joint, (
            f"the gradient of argument {index}, summed, isn't the slope along all of its elements "
            "at once, although each element could be right by itself (are there ties?)"
        )
    return float(errors[worst]), (
        f"the gradient of argument {index} at {place_of(places[worst], primal)} is "
        f"{number(chosen[worst])}, measured {number(values[worst])}, where the argument is "
        f"{number(elements(primal, places)[worst])}"
    )


def joint_error(box: Measured, gradients: Mapping[int, Tensor]) -> float:
    """How far gradients are from the slope along all elements at once, relative to their size.

    At a tie each element, or each argument, may take all of the gradient; together they may not.
    """
    if any(grad.is_complex() or box.primals[i].is_complex() for i, grad in gradients.items()):
        return 0.0
    if sum(grad.numel() for grad in gradients.values()) < 2:
        return 0.0
    if any(_has_tiny_elements(box.primals[index]) for index in gradients):
        return 0.0  # a step goes past the kinks of several at once
    flat = torch.cat(
        [elements(grad, range(grad.numel())).to(torch.float64) for grad in gradients.values()]
    )
    (value, bar), sides = box.together({i: torch.ones_like(box.primals[i]) for i in gradients})
    size = flat.abs().sum().clamp(min=1e-9)
    error = float(((flat.sum() - value).abs() - bar).clamp(min=0) / size)
    if bool(bar.isinf()) or error <= NOTED or is_between(flat.sum(), sides):
        return 0.0
    return error


def _has_tiny_elements(tensor: Tensor) -> bool:
    sizes = tensor.detach().abs()
    return bool(((sizes > 0) & (sizes < TINY)).any())


def compare_forward(function: TensorFunction, program: Program, remedy: str) -> Finding | None:
    """The tangents of a function's outputs against its slopes along the same tangents."""
    largest, detail = 0.0, ""
    for relative in (False, True):
        tangents = tangents_of(program, relative=relative)
        seed()
        push = in_forward(function, program.argnums, tangents)
        actual = push(*[primal.clone() for primal in program.primals])
        box = Measured.at(function, program.primals)
        directions = dict(zip(program.argnums, tangents, strict=True))
        slope = box.along(directions)
        for index, output in enumerate(box.outputs):
            if is_differentiable(output) and output.numel():
                error, text = one_output(box, directions, index, (actual[index], slope))
                if error > largest or not detail:
                    largest, detail = error, text
    return verdict(largest, detail, narrowest(program), (remedy, IMPRECISE))


def tangents_of(program: Program, *, relative: bool) -> list[Tensor]:
    """Fixed tangents: unequal numbers, or as large as the elements that they belong to."""
    made = []
    for index in program.argnums:
        primal = program.primals[index]
        tangent = weights_like(primal, 0.9)
        made.append(tangent * primal.abs() if relative else tangent)
    return made


def one_output(
    box: Measured,
    directions: dict[int, Tensor],
    index: int,
    found: tuple[Tensor, Slope],
) -> tuple[float, str]:
    """The largest relative error of the tangent of one output, and where it is."""
    actual, slope = found
    value, bar = slope.values[index], slope.bars[index]
    if actual.shape != value.shape:
        shapes = f"of the shape {list(actual.shape)}, expected {list(value.shape)}"
        return float("inf"), f"the tangent of output {index} is {shapes}"

    def sides_at(position: int) -> list[tuple[Tensor, Tensor]]:
        return [
            (side.values[index].reshape(-1)[position], side.bars[index].reshape(-1)[position])
            for side in box.sides_along(directions)
        ]

    errors, _ = judged(actual.detach(), value, bar, sides_at)
    worst = int(errors.reshape(-1).argmax())
    if float(errors.reshape(-1)[worst]) > NOTED and _are_in_another_order(
        actual.detach(), box.sides_along(directions), index
    ):
        return 0.0, ""
    return float(errors.reshape(-1)[worst]), (
        f"the tangent of output {index} at {place_of(worst, value)} is "
        f"{number(actual.reshape(-1)[worst])}, measured {number(value.reshape(-1)[worst])}"
    )


def _are_in_another_order(actual: Tensor, sides: Sequence[Slope], index: int) -> bool:
    """Whether tangents at ties are those to one side in another order, as of a sort."""
    kinked = not torch.allclose(sides[0].values[index], sides[1].values[index])
    if not kinked or actual.is_complex() or actual.numel() < 2:
        return False
    mine = actual.to(torch.float64).reshape(-1).sort().values
    return any(
        bool(side.bars[index].isfinite().all())
        and torch.allclose(mine, side.values[index].reshape(-1).sort().values, atol=1e-7)
        for side in sides
    )


def elements(tensor: Tensor, places: Sequence[int]) -> Tensor:
    """Some elements, by their places in the flattened tensor."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.detach().resolve_conj().resolve_neg().reshape(-1)[list(places)]


def number(value: Tensor) -> str:
    """A number in short."""
    return f"{value.item():.6g}"


def spread(count: int) -> list[int]:
    """The places that are measured."""
    if count <= MOST_ELEMENTS:
        return list(range(count))
    return torch.linspace(0, count - 1, MOST_ELEMENTS).long().tolist()


def place_of(flat: int, tensor: Tensor) -> list[int]:
    """An index of the tensor's shape."""
    return [int(axis) for axis in torch.unravel_index(torch.tensor(flat), tensor.shape)]


def plain(info: FunctionInfo, sample: Sample) -> Program:
    """The program of a sample; nothing of its oracle is used but a reference's derivatives."""
    return program_of(info, sample, EagerAutograd() if info.ref else FiniteDifferences())


def _without_constants(program: Program) -> TensorFunction:
    """The program's function; an output that is marked non-differentiable doesn't move."""
    seed()
    views = differentiable_views([primal.detach() for primal in program.primals], program.argnums)
    outputs = program.run(*views)
    constant = {index for index, output in enumerate(outputs) if not output.requires_grad}
    if not constant or len(constant) == len(outputs):
        return program.run

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            torch.zeros_like(output) if index in constant else output
            for index, output in enumerate(program.run(*primals))
        )

    return run


def gradient(info: FunctionInfo, sample: Sample) -> Finding | None:
    """The backward against finite differences of the forward, or against the reference's."""
    program = plain(info, sample)
    if info.ref is None:
        return compare_reverse(_without_constants(program), program, INTENDED)
    return against_reference(program, in_reverse)


def jvp_rule(info: FunctionInfo, sample: Sample) -> Finding | None:
    """The jvp rule against finite differences of the forward, or against the reference's."""
    program = plain(info, sample)
    if info.ref is None:
        return compare_forward(_without_constants(program), program, INTENDED)

    def pushed(function: TensorFunction, argnums: Sequence[int]) -> TensorFunction:
        tangents = tangents_of(program, relative=False)
        if function is program.run:
            return in_forward(function, argnums, tangents)
        return lambda *primals: program.derivatives.jvp(function, primals, argnums, tangents)[1]

    return against_reference(program, pushed)


def against_reference(program: Program, derived: Callable[..., TensorFunction]) -> Finding | None:
    """Values and derivatives against those of the reference."""
    largest, detail = 0.0, ""
    for what, of in (("the result", None), ("the derivative", derived)):
        pair = []
        for function in (program.run, program.expected):
            seed()
            made = function if of is None else of(function, program.argnums)
            pair.append(made(*[primal.clone() for primal in program.primals]))
        for index, (actual, expected) in enumerate(zip(*pair, strict=True)):
            error, text = one_result(actual.detach(), expected.detach())
            if error > largest:
                largest, detail = error, f"{what} {index} {text}"
    remedy = "the reference says otherwise: one of the two is wrong."
    return verdict(largest, detail, narrowest(program), (remedy, IMPRECISE))


def one_result(actual: Tensor, expected: Tensor) -> tuple[float, str]:
    """The largest relative error of one tensor."""
    if actual.shape != expected.shape:
        return float("inf"), f"has the shape {list(actual.shape)}, not {list(expected.shape)}"
    if not actual.numel() or not is_differentiable(expected):
        return 0.0, ""
    wide = expected.to(torch.complex128 if expected.is_complex() else torch.float64)
    both_nan = actual.isnan() & expected.isnan()
    errors = relative_errors(actual, wide, torch.zeros(wide.shape, dtype=torch.float64))
    errors = torch.where(both_nan | (actual == expected), 0.0, errors).reshape(-1)
    worst = int(errors.argmax())
    return float(errors[worst]), (
        f"at {place_of(worst, actual)} is {number(actual.reshape(-1)[worst])}, of the reference "
        f"{number(expected.reshape(-1)[worst])}"
    )


def reverse_over_reverse(program: Program) -> Finding | None:
    """The derivative of backward is the derivative of what backward computes."""
    return compare_reverse(in_reverse(program.run, program.argnums), program, HIGHER)


def forward_over_reverse(program: Program) -> Finding | None:
    """The same in forward mode."""
    return compare_forward(in_reverse_by_levels(program.run, program.argnums), program, HIGHER)


def tangent_function(program: Program) -> TensorFunction:
    """The tangents of the outputs along fixed tangents."""
    return in_forward(program.run, program.argnums, tangents_of(program, relative=False))


def reverse_over_forward(program: Program) -> Finding | None:
    """The gradient of the tangents that jvp computes."""
    return compare_reverse(tangent_function(program), program, HIGHER)


def forward_over_forward(program: Program) -> Finding | None:
    """The tangents of the tangents."""
    return compare_forward(tangent_function(program), program, HIGHER)


def third_order(program: Program) -> Finding | None:
    """The derivative of the derivative of backward."""
    second = in_reverse(in_reverse(program.run, program.argnums), program.argnums)
    return compare_reverse(second, program, HIGHER)


def third_order_mixed(program: Program) -> Finding | None:
    """Forward mode over reverse mode over forward mode."""
    second = in_reverse_by_levels(tangent_function(program), program.argnums)
    return compare_forward(second, program, HIGHER)


def of_program(
    compare: Callable[[Program], Finding | None],
) -> Callable[[FunctionInfo, Sample], Finding | None]:
    """A probe of a comparison that takes a program."""
    return lambda info, sample: compare(plain(info, sample))


REVERSE = frozenset({"autograd", "gradgrad"})
FORWARD = frozenset({"forward_ad"})
BOTH = REVERSE | FORWARD

RULES = (
    Probe("gradient", gradient, frozenset({"autograd"}), EVERY),
    Probe("jvp rule", jvp_rule, FORWARD, EVERY, rule="jvp", linear=True),
)
ORDERS = (
    Probe("second order", of_program(reverse_over_reverse), REVERSE),
    Probe("forward over reverse", of_program(forward_over_reverse), BOTH, SMALLEST, linear=True),
    Probe("reverse over forward", of_program(reverse_over_forward), BOTH, SMALLEST, linear=True),
    Probe("forward over forward", of_program(forward_over_forward), FORWARD, SMALLEST, linear=True),
    Probe("third order", of_program(third_order), REVERSE, SMALLEST),
    Probe("third order mixed", of_program(third_order_mixed), BOTH, SMALLEST, linear=True),
)
