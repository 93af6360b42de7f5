"""Gradients and tangents of first and higher order."""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn

from tests.silent_errors.records import Group, grads, leaf, numbers

GROUP = Group("Derivatives", [])
case = GROUP.case


@case("Second derivatives of a compiled function were bogus; since 2.0 they raise.", issue=91469)
def second_derivative(compile):
    compiled = compile(lambda x: (x**4).sin())

    def call(step):
        x = leaf(3, step=step)
        (slope,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        return slope, grads(slope, [x])

    return call


@case("Gradients that were made with create_graph don't require grad.", issue=181581)
def create_graph_inside(compile):
    def function(x, w):
        y = F.leaky_relu(x @ w).square().sum()
        return torch.autograd.grad(y, x, create_graph=True)[0]

    compiled = compile(function)

    def call(step):
        x, w = leaf(2, 3, step=step), leaf(3, 3, step=step, seed=1)
        slope = compiled(x, w)
        return slope, grads(slope, [x, w])

    return call


@case("The gradient of a gradient computed inside raises.", issue=183603)
def gradient_of_a_gradient_inside(compile):
    def function(x):
        return torch.autograd.grad((x**4).sum(), x, create_graph=True)[0]

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        slope = compiled(x)
        (curve,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return slope, curve.detach().clone(), grads(curve, [x])

    return call


@case(
    "A compiled vjp function returns zeros.",
    issue=172386,
    refuses="the function that `vjp` returns keeps a graph of its own, made outside",
)
def compiled_vjp_function(compile):
    w = numbers(4, 2)
    outputs, pull = torch.func.vjp(lambda v: (v @ w).sin(), numbers(3, 4))
    compiled = compile(pull)
    return lambda step: compiled(numbers(*outputs.shape, step=step, seed=1))


@case("Of two additions to one column, one is missing in the gradient.", issue=136662)
def two_additions_to_a_column(compile):
    def loss(x):
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 2].abs()
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    compiled = compile(lambda x: torch.func.grad(loss)(x))
    return lambda step: compiled(numbers(2, 3, step=step))


@case("Tangents of dual numbers are dropped: the result has none.", issue=187284)
def dual_numbers_into_a_compiled_function(compile):
    compiled = compile(lambda x: (x**2).sum())

    def call(step):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(numbers(3, step=step), numbers(3, step=step, seed=1))
            return tuple(forward_ad.unpack_dual(compiled(dual)))

    return call


@case("The gradient is zero where the slice was not written.", issue=180771)
def gradient_of_slice_scatter(compile):
    compiled = compile(lambda x, y: torch.slice_scatter(x, y, 0, 0, 2).sum())

    def call(step):
        x, y = leaf(5, step=step), leaf(2, step=step, seed=1)
        return grads(compiled(x, y), [x, y])

    return call


@case("The gradient is zero where the sum is over the scattered dimension.", issue=180164)
def gradient_of_slice_scatter_and_sum(compile):
    compiled = compile(lambda x, y: torch.slice_scatter(x, y, 1, 0, 6).sum(1))

    def call(step):
        x, y = leaf(4, 13, 5, step=step), leaf(4, 6, 5, step=step, seed=1)
        return grads(compiled(x, y), [x, y])

    return call


@case("The gradient is zero everywhere.", issue=182012)
def gradient_of_diagonal_scatter(compile):
    compiled = compile(lambda x, y: torch.diagonal_scatter(x, y, 0).sum())

    def call(step):
        x, y = leaf(4, 4, step=step), leaf(4, step=step, seed=1)
        return grads(compiled(x, y), [x, y])

    return call


@case("Gradients are too large by the size of the batch.", issue=188084)
def index_select_per_sample(compile):
    index, weights = torch.tensor([0, 2]), torch.tensor([1.0, -1.0])

    def row(x):
        stacked = torch.stack([x[k] for k in range(4)], -1)
        return (torch.index_select(stacked, -1, index) * weights).sum(-1)

    compiled = compile(lambda x: torch.vmap(torch.func.grad_and_value(row))(x))
    return lambda step: compiled(numbers(4 + step, 4, step=step))


@case("The gradient of a product with two zeros doesn't require grad.", issue=106789)
def second_derivative_of_a_product_with_zeros(compile):
    compiled = compile(lambda x: x.prod())

    def call(step):
        x = torch.tensor([2.0, 3.0 + step, 0.0, 0.0], requires_grad=True)
        (slope,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        return slope, grads(slope, [x])

    return call


@case("Part of the gradient is what lay in memory before.", issue=193061)
def modulated_norms_with_shared_parameters(compile):
    def function(x, table):
        first, second, third, fourth = table.chunk(4)
        x = F.layer_norm(x, x.shape[-1:]) * (1 + first) + second
        return F.layer_norm(x, x.shape[-1:]) * (1 + third) + fourth

    compiled = compile(function)

    def call(step):
        x, table = leaf(2, 8, 16, step=step), leaf(64, step=step, seed=1)
        y = compiled(x, table)
        return y, grads(y, [x, table])

    return call


@case(
    "The gradient of one result by another is None.",
    issue=132929,
)
def gradient_of_one_result_by_another(compile):
    torch.manual_seed(0)
    down, up = nn.Linear(3, 4), nn.Linear(4, 3)

    def function(x):
        latent = down(x)
        return up(latent.sin()), latent

    compiled = compile(function)

    def call(step):
        y, latent = compiled(numbers(2, 3, step=step))
        return y, latent, torch.autograd.grad(y.sum(), latent)

    return call


@case("An input that begins to require grad later gets no gradient.", issue=113290)
def requires_grad_that_comes_later(compile):
    compiled = compile(lambda x, s: (x * 3 * s).sin())
    x, s = numbers(3), leaf(3, seed=1)

    def call(step):
        x.requires_grad_(step != 1)
        y = compiled(x, s)
        return y, grads(y, [s, *([x] if x.requires_grad else [])])

    return call


@case("A parameter that is frozen and thawed keeps its first program.", issue=139476)
def parameters_that_are_frozen_and_thawed(compile):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    compiled = compile(model)

    def call(step):
        model[0].weight.requires_grad_(step == 1)
        model[2].bias.requires_grad_(step != 1)
        model.zero_grad()
        compiled(numbers(2, 3, step=step)).square().sum().backward()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    return call


@case("The discriminator's gradient step frees what the generator's needs.", issue=91542)
def two_losses_of_one_network(compile):
    torch.manual_seed(0)
    generator, judge = nn.Linear(2, 2), nn.Linear(2, 1)
    generated, judged = compile(generator), compile(judge)

    def call(step):
        for module in (generator, judge):
            module.zero_grad()
        fake = generated(numbers(3, 2, step=step))
        judged(fake.detach()).mean().backward()
        judged(fake).mean().backward()
        return [p.grad.clone() for p in (*generator.parameters(), *judge.parameters())]

    return call


@case("After the gradient of one result, that of the next raises.", issue=97745)
def results_with_a_detached_part(compile):
    def function(a, b):
        y = a * b
        return y.sum(), y.detach() * a.sin()

    compiled = compile(function)

    def call(step):
        a, b = leaf(3, step=step), leaf(3, step=step, seed=1)
        first, second = compiled(a, b)
        (first + second.sum()).backward()
        return first, second, a.grad.clone(), b.grad.clone()

    return call


@case("The parts of an unbound input can't be differentiated one after the other.", issue=118739)
def parts_of_an_input_one_by_one(compile):
    compiled = compile(lambda x: x.unbind(0))

    def call(step):
        x = leaf(3, 2, step=step)
        parts = compiled(x)
        for part in parts:
            part.square().sum().backward()
        return x.grad.clone()

    return call


@case("The gradient by a tensor that a function saved as a view is wrong.", issue=185497)
def interpolation_that_is_written_to(compile):
    def function(x):
        y = F.interpolate(x, scale_factor=2, mode="bilinear")
        x.mul_(2)
        return y * y

    compiled = compile(function)

    def call(step):
        w = leaf(1, 2, 4, 4, step=step)
        x = w * 1
        y = compiled(x)
        return y, x, grads([y, x], [w])

    return call


@case("Hessians by forward over reverse mode are wrong or raise.", issue=91469)
def hessian_of_a_compiled_function(compile):
    compiled = compile(lambda x: (x.sin() * x.roll(1)).sum())
    return lambda step: torch.func.hessian(compiled)(numbers(3, step=step))


@case("A custom op under vmap uses another batch's numbers.", issue=146536)
def quantiles_under_vmap(compile):
    q = torch.tensor([0.2, 0.5, 0.8])
    compiled = compile(torch.vmap(lambda x: torch.quantile(x, q, -1)))
    return lambda step: compiled(numbers(2, 5, step=step))
