"""Functions that read values, by how they do it; the sizes and values they are called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Reading:
    """One way of reading a value.

    Attributes:
        function: Takes ``x`` of any length, positive where the number is even, and the number.
        per_value: How many programs a value takes, beyond the first size's own.
    """

    function: Callable[[torch.Tensor, torch.Tensor], Any]
    per_value: int = 1


def item(x, number):
    return x.sin() * number.item()


def branch(x, number):
    return x.sin() if number > 5 else x.cos() * x.shape[0]


def all_of_it(x, number):
    return x.exp() * x.shape[0] if (x > 0).all() else (x * 2).sin()


def asserted(x, number):
    assert (x > -100).all()
    assert bool(torch.isfinite(x).all()), "not finite"
    return (x * number).sin().sum(0)


def whole_number(x, number):
    return x ** int(number)


def floating(x, number):
    return (x * float(number)).tanh()


def as_bool(x, number):
    return (x * x).sum() if bool(number == 4) else (x * x * x).sum()


def listed(x, number):
    return x * sum(torch.stack([number, number + 1]).tolist())


def equal(x, number):
    return x.sin() if torch.equal(x, x.abs()) else x.cos()


def close(x, number):
    return x.sin() if torch.allclose(x, x.abs()) else x.cos()


def loop(x, number):
    for _ in range(number):
        x = x.sin()
    return x


def sliced(x, number):
    return x[:, : number - 2] * 2


def a_size(x, number):
    return torch.cat([x, x.new_zeros(int(number), x.shape[1])]).exp()


def a_key(x, number):
    return {4: torch.sin, 5: torch.cos, 6: torch.tanh}[number.item()](x)


def several(x, number):
    y = x.sin() if (x > 0).any() else x.cos()
    y = y * number.item() if (x * 2 > -50).all() else y
    return y.exp() if y.detach().max() < 1e6 else y


def of_results(x, number):
    y = (x * number).sin().cumsum(0)
    return y / y.shape[0] if bool((y.detach() < 1e6).all()) else y


def compared_with_a_size(x, number):
    return x.sin() * x.shape[0] if x.shape[0] > number.item() + 3 else x.cos()


def of_the_sizes(x, number):
    return x.sin() if number.item() < 2 * x.shape[0] + 6 else x.cos()


def without_a_result(x, number):
    number.item()
    return x.shape[0], x * 2


def random_numbers(x, number):
    noise = torch.rand(x.shape[0], 1, dtype=x.dtype)
    return x * noise * number.item()


def checked_by_torch(x, number):
    return torch.nn.functional.gaussian_nll_loss(x, x.sin(), x * x + number, reduction="none")


def checked_by_a_distribution(x, number):
    normal = torch.distributions.Normal(x, (x * x + number).sqrt())
    return normal.log_prob(x.cos()) + normal.entropy()


def written(x, number):
    y = x * 2
    if number > 4:
        y.mul_(3)
    y[0] = float(number)
    return y


READINGS = {
    reading.function.__name__: reading
    for reading in (
        Reading(item),
        Reading(branch),
        Reading(all_of_it),
        Reading(asserted),
        Reading(whole_number),
        Reading(floating),
        Reading(as_bool),
        Reading(listed),
        Reading(equal),
        Reading(close),
        Reading(loop),
        Reading(sliced),
        Reading(a_size),
        Reading(a_key),
        Reading(several),
        Reading(of_results),
        Reading(compared_with_a_size, per_value=2),
        Reading(of_the_sizes),
        Reading(without_a_result),
        Reading(random_numbers),
        Reading(checked_by_torch),
        Reading(checked_by_a_distribution),
        Reading(written),
    )
}
VALUES = (4, 5, 6)
# Sizes and values of calls, by what changes.
CHANGES: dict[str, list[tuple[int, int]]] = {
    "sizes": [(size, 4) for size in range(2, 22)],
    "values": [(5, value) for value in VALUES * 3],
    "both": [(size, VALUES[size % 3]) for size in range(2, 22)],
    "each": [(size, value) for value in VALUES for size in range(2, 9)],
}


def operands(size: int, value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a function is called with."""
    generator = torch.Generator().manual_seed(size)
    x = torch.rand(size, 4, dtype=torch.float64, generator=generator) + 0.1
    if value % 2:
        x[0, 1] *= -1
    return x, torch.tensor(value)


def results(function: Callable[..., Any], size: int, value: int, order: int) -> list[Any]:
    """What a call returns, and its derivatives up to an order."""
    x, number = operands(size, value)
    torch.manual_seed(value)
    if order == 0:
        with torch.no_grad():
            return [function(x, number)]
    x.requires_grad_()
    found = function(x, number)
    output = found[1] if isinstance(found, tuple) else found
    (first,) = torch.autograd.grad(output.sin().sum(), x, create_graph=order > 1)
    made = [found[0] if isinstance(found, tuple) else None, output.detach(), first.detach()]
    if order > 1:
        made += torch.autograd.grad(first.sin().sum(), x)
    return made
