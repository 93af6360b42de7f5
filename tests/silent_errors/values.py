"""Values of single expressions, and errors that eager raises and a compiler doesn't."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.silent_errors.records import Group, leaf, numbers, raised

GROUP = Group("Values", [])
case = GROUP.case

ERRORS = Group("Missing errors", [])
error_case = ERRORS.case


@case("uint8 addition is done in a wider type.", issue=105264)
def uint8_addition(compile):
    compiled = compile(lambda x: (x + x).to(torch.int16))
    return lambda step: compiled(torch.tensor([128, 200, 3 + step], dtype=torch.uint8))


@case("The negative of a uint8 is compared as a negative number.", issue=93829)
def uint8_negation(compile):
    def function(x):
        y = torch.neg(x)
        return y, torch.lt(y, torch.tensor(4, dtype=torch.uint8))

    compiled = compile(function)
    return lambda step: compiled(torch.tensor([6 + step, 0], dtype=torch.uint8))


@case("abs of a uint8, negated, is a negative sum.", issue=187018)
def uint8_abs(compile):
    def function(x):
        y = -x.abs()
        return torch.cat([y, y]).sum()

    compiled = compile(function)
    return lambda step: compiled(torch.tensor([200, 200 + step], dtype=torch.uint8))


@case("A complex number broadcast in an addition has a wrong imaginary part.", issue=174891)
def complex_broadcast(compile):
    compiled = compile(lambda x: x + torch.ones(2, 1, dtype=torch.complex64))
    return lambda step: compiled(torch.full((2, 2), 1.0 + step, dtype=torch.complex64))


@case("A pad after a sum has the sum where the fill belongs.", issue=189895)
def pad_after_a_sum(compile):
    def function(mask):
        lengths = mask.sum(-1, dtype=torch.int32)
        return F.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))

    compiled = compile(function)
    return lambda step: compiled(torch.ones(1 + step, 4096, dtype=torch.bool))


@case("All batches but the first are wrong.", issue=179931)
def pooling_and_a_sum(compile):
    def function(x):
        y = F.adaptive_avg_pool2d(x, (7, 7)).flatten(1)
        return y, y.sum(1)

    compiled = compile(function)
    return lambda step: compiled(numbers(3, 5, 15, 15, step=step))


@case("Sums of int32 products lose a term.", issue=190764)
def sums_of_integer_products(compile):
    def function(x, y, z, p, q, r):
        return (x @ y + x @ z + (p @ q + p @ r)).sum(1)

    compiled = compile(function)

    def call(step):
        edge = torch.tensor([[2**31 - 1, -(2**31)], [1 + step, -1]], dtype=torch.int32)
        return compiled(*(edge.roll(k, 0) for k in range(6)))

    return call


@case("An unrolled loop over integers ends with another number.", issue=96064)
def unrolled_loop(compile):
    def function(x):
        total = torch.zeros_like(x)
        for k in range(5):
            total[k % 2] += x[k % 3] * k
            total = total.roll(1)
        return total

    compiled = compile(function)
    return lambda step: compiled(torch.arange(3) + step)


@case("An index read off a tensor picks another row when sizes change.", issue=125387)
def index_that_depends_on_the_length(compile):
    def function(ids, table):
        last = torch.eq(ids, 0).int().argmax(-1) - 1
        last = last % ids.shape[-1]
        return table[torch.arange(ids.shape[0]), last], last

    compiled = compile(function)

    def call(step):
        ids = torch.arange(1, 13).reshape(2, 6)[:, : 4 + step].clone()
        ids[:, -1] = 0
        return compiled(ids, numbers(2, 4 + step, 3, step=step))

    return call


@case("Attention with a mask of its own is another product.", issue=105190)
def attention_with_a_negative_scale(compile):
    def function(x):
        weights = (torch.matmul(x, x.transpose(-1, -2)) / -0.5).softmax(-1)
        return torch.matmul(weights, x)

    compiled = compile(function)
    return lambda step: compiled(numbers(1, 3, 8, 8, step=step))


@case("A maximum over equal elements has another index or gradient.", issue=None)
def ties_in_a_maximum(compile):
    def function(x):
        values, indices = x.max(-1)
        return values, indices, x.amax(-1), x.argmin(-1)

    compiled = compile(function)

    def call(step):
        x = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]).add(step).requires_grad_()
        values, indices, largest, least = compiled(x)
        found = torch.autograd.grad(values.sum() + 2 * largest.sum(), x)[0]
        return values, indices, largest, least, found.clone()

    return call


@case("round, remainder and integer division differ at halves and signs.", issue=198364)
def rounding(compile):
    def function(x, n):
        return x.round(), x.remainder(-1.5), x.fmod(1.5), n // 3, n % 3, n.div(-3).trunc()

    compiled = compile(function)

    def call(step):
        x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]) + step
        return compiled(x, torch.arange(-5, 6) + step)

    return call


@error_case("celu_ with alpha=0 returns nan.", issue=183762)
def celu_with_alpha_zero(compile):
    compiled = compile(lambda x: torch.celu_(x, 0.0))
    return lambda step: raised(lambda: compiled(numbers(2, 3, step=step)))


@error_case("A product of half and single precision succeeds.", issue=177630)
def product_of_two_dtypes(compile):
    compiled = compile(torch.matmul)

    def call(step):
        a, b = numbers(2, 3, 4, step=step).half(), numbers(2, 4, 3, step=step)
        return raised(lambda: compiled(a, b))

    return call


@error_case("Attention weights of half precision times single precision succeed.", issue=172183)
def attention_of_two_dtypes(compile):
    def function(q, k, v):
        return torch.matmul((q @ k.transpose(-1, -2) / 2.0).softmax(-1).half(), v)

    compiled = compile(function)

    def call(step):
        q, k, v = (numbers(1, 2, 4, 4, step=step, seed=seed) for seed in range(3))
        return raised(lambda: compiled(q, k, v))

    return call


@error_case("torch.full with a parameter succeeds.", issue=183900)
def full_of_a_parameter(compile):
    value = nn.Parameter(torch.tensor(2.5))
    compiled = compile(lambda x: torch.full((2,), fill_value=value) + x)
    return lambda step: raised(lambda: compiled(numbers(2, step=step)))


@error_case("A wrong dimension raises an error of another type.", issue=184340)
def softmax_over_a_missing_dimension(compile):
    compiled = compile(lambda x: torch.softmax(x, 10))
    return lambda step: raised(lambda: compiled(numbers(4, step=step)))


@error_case("A leaf that requires grad is written to without an error.", issue=90844)
def write_to_a_leaf(compile):
    compiled = compile(lambda x: x.mul_(2))

    def call(step):
        x = leaf(3, step=step)
        return raised(lambda: compiled(x)), x

    return call


@error_case("An index out of range reads what lies there.", issue=197554)
def index_out_of_range(compile):
    compiled = compile(lambda x, i: x[i] * 2)
    return lambda step: raised(lambda: compiled(numbers(4, step=step), torch.tensor([1, 7 + step])))


@error_case("Shapes that don't match are broadcast where eager refuses them.", issue=197554)
def in_place_broadcast(compile):
    compiled = compile(lambda x, y: x.add_(y))

    def call(step):
        x = numbers(3, step=step)
        return raised(lambda: compiled(x, numbers(2, 3, step=step, seed=1))), x

    return call


@error_case("index_copy_ takes a source of another shape.", issue=115931)
def index_copy_of_another_shape(compile):
    compiled = compile(lambda x, y: x.index_copy_(0, torch.tensor([0]), y))

    def call(step):
        x = torch.ones(2, 10)
        return raised(lambda: compiled(x, numbers(2, 10, step=step))), x

    return call


@error_case("The second backward through freed tensors succeeds.", issue=97745)
def second_backward(compile):
    compiled = compile(lambda x: x.sin() * x)

    def call(step):
        y = compiled(leaf(3, step=step)).sum()
        y.backward()
        return raised(y.backward)

    return call
