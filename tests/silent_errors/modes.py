"""Random numbers, checkpoints, autocast and ``vmap``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.silent_errors.records import Group, grads, leaf, numbers, raised

GROUP = Group("Random numbers, checkpoints, autocast, vmap", [])
case = GROUP.case


@case("The mask of a dropout is drawn again for the backward.", issue=190758)
def dropout_and_its_gradient(compile):
    compiled = compile(lambda x: F.dropout(x * 2, 0.5).exp())

    def call(step):
        x = leaf(64, step=step)
        y = compiled(x)
        (found,) = torch.autograd.grad(y.sum(), x)
        kept = y != 1
        return bool(torch.equal(found != 0, kept)), 0 < int(kept.sum()) < 64

    return call


@case("A checkpointed dropout has another mask when it is computed again.", issue=190758)
def dropout_in_a_checkpoint(compile):
    def function(x):
        return checkpoint(lambda z: F.dropout(z, 0.5) * z, x, use_reentrant=False)

    compiled = compile(function)

    def call(step):
        x = leaf(64, step=step)
        y = compiled(x)
        (found,) = torch.autograd.grad(y.sum(), x)
        return torch.isclose(found * x, 2 * y).all().item(), bool((y == 0).any())

    return call


@case("Two draws of one function are the same numbers.", issue=158643)
def two_draws(compile):
    def function(x):
        return torch.rand_like(x), torch.rand_like(x)

    compiled = compile(function)

    def call(step):
        first, second = compiled(numbers(32, step=step))
        again, _ = compiled(numbers(32, step=step))
        return bool((first != second).any()), bool((first != again).any()), first.dtype

    return call


@case("The same seed doesn't give the same numbers.", issue=172206)
def draws_after_a_seed(compile):
    compiled = compile(lambda x: torch.randn_like(x) + x)

    def call(step):
        x = numbers(16, step=step)
        torch.manual_seed(step)
        first = compiled(x)
        torch.manual_seed(step)
        return bool(torch.equal(first, compiled(x)))

    return call


@case("The backward of a call in autocast runs in half precision and overflows.", issue=153044)
def backward_outside_of_autocast(compile):
    torch.manual_seed(0)
    linear = nn.Linear(4, 4)
    # Halves and small numbers, which bfloat16 has; a square of theirs it doesn't have.
    compiled = compile(lambda x: (linear(x).float() * x).square())

    def call(step):
        x = torch.arange(8.0).reshape(2, 4).add(step).div(64).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = compiled(x)
        return y, grads(y, [x])

    return call


@case("autocast(enabled=False) inside is ignored by the backward.", issue=179804)
def autocast_off_inside(compile):
    weight = leaf(8, 8, seed=5)

    def function(x):
        with torch.autocast("cpu", enabled=False):
            return x.float() @ weight.float().T

    compiled = compile(function)

    def call(step):
        x = numbers(2, 8, step=step).bfloat16().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = compiled(x)
        return y, grads(y, [x, weight])

    return call


@case("A call outside of autocast uses the program of a call inside.", issue=124901)
def inside_and_outside_of_autocast(compile):
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    compiled = compile(linear)

    def call(step):
        x = numbers(2, 4, step=step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step == 1):
            return compiled(x)

    return call


@case(
    "An LSTM in autocast returns another dtype.",
    issue=None,
    gap="the dtype is eager's; torch's fused kernel rounds to bfloat16 in other places",
)
def lstm_in_autocast(compile):
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4)
    compiled = compile(lambda x: lstm(x)[0])

    def call(step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return compiled(numbers(2, 2, 3, step=step))

    return call


@case(
    "Random numbers in a vmap are drawn without an error.",
    issue="https://github.com/pytorch/functorch/issues/611",
)
def random_numbers_in_a_vmap(compile):
    compiled = compile(lambda x: x + torch.randn(3))

    def call(step):
        x = numbers(2, 3, step=step)
        same = torch.vmap(compiled, randomness="same")(x) - x
        different = torch.vmap(compiled, randomness="different")(x) - x
        return (
            raised(lambda: torch.vmap(compiled)(x)),
            bool(torch.allclose(same[0], same[1])),
            bool(torch.allclose(different[0], different[1])),
        )

    return call


@case(
    "Draws into a fresh tensor ignore vmap's randomness.",
    issue="https://github.com/pytorch/functorch/issues/611",
)
def draws_in_place_in_a_vmap(compile):
    compiled = compile(lambda x: x + torch.empty(3).normal_())

    def call(step):
        x = numbers(2, 3, step=step)
        same = torch.vmap(compiled, randomness="same")(x) - x
        different = raised(lambda: torch.vmap(compiled, randomness="different")(x))
        return (
            raised(lambda: torch.vmap(compiled)(x)),
            bool(torch.allclose(same[0], same[1])),
            different,
        )

    return call


@case("Ensembled models under vmap use one model's weights.", issue=146536)
def ensemble_of_models(compile):
    torch.manual_seed(0)
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    template = nn.Linear(3, 2)

    def one(p, b, x):
        return torch.func.functional_call(template, (p, b), (x,)).tanh()

    compiled = compile(lambda p, b, x: torch.vmap(one, (0, 0, None))(p, b, x))

    def call(step):
        y = compiled(params, buffers, numbers(2, 3, step=step))
        return y, grads(y, list(params.values()))

    return call


@case(
    "In-place writes under vmap write to all of the batch.",
    issue="https://github.com/pytorch/functorch/issues/1025",
)
def writes_under_vmap(compile):
    def function(x):
        y = torch.zeros_like(x)
        y[0] += x[1]
        y[1:] = x[:-1] * 2
        return y

    compiled = compile(function)

    def call(step):
        x = numbers(3, 4, step=step)
        return torch.vmap(compiled)(x), torch.vmap(compiled, 1, 1)(x)

    return call


@case("A checkpoint around a compiled function computes its backward once.", issue=None)
def checkpoint_around(compile):
    compiled = compile(lambda x: x.sin() * x.exp())

    def call(step):
        x = leaf(3, step=step)
        y = checkpoint(compiled, x, use_reentrant=False)
        return y, grads(y, [x])

    return call
