"""Hooks, ``retain_grad`` and other ways to reach into the autograd graph."""

from __future__ import annotations

import torch
from torch import nn

from tests.silent_errors.records import Group, autograd_state, grads, leaf, numbers

GROUP = Group("Hooks and the autograd graph", [])
case = GROUP.case


@case("retain_grad inside is lost: the results have no .grad.", issue=91468)
def retain_grad_inside(compile):
    def function(x):
        y = x.clone()
        y.retain_grad()
        z = y.sin()
        z.retain_grad()
        return z, y

    compiled = compile(function)

    def call(step):
        z, y = compiled(leaf(3, step=step))
        (z * 2).sum().backward()
        return z.grad, y.grad, z.retains_grad, y.retains_grad

    return call


@case("A hook on an intermediate is not run.", issue=91468)
def hook_on_an_intermediate(compile):
    def function(x):
        y = x * x
        y.register_hook(lambda grad: grad * 3.14)
        return (y * x).sum()

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        return grads(compiled(x), [x])

    return call


@case("A hook on an argument is not run, or for another gradient.", issue=91468)
def hook_on_an_input(compile):
    def function(x):
        x.register_hook(lambda grad: grad.clamp(max=0.5))
        return (x.exp() * x).sum()

    compiled = compile(function)

    def call(step):
        w = leaf(3, step=step)
        return grads(compiled(w * 2), [w])

    return call


def layer():
    """A layer with simple weights."""
    found = nn.Linear(3, 3, bias=False)
    found.weight = nn.Parameter(torch.eye(3) + 0.5)
    return found


@case("A full backward hook that is registered later is ignored.", issue=115750)
def full_backward_hook_that_comes_later(compile):
    module = layer()
    compiled = compile(lambda x: module(x))

    def call(step):
        if step == 1:
            module.register_full_backward_hook(lambda m, given, _: tuple(2 * g for g in given))
        x = leaf(3, step=step)
        y = compiled(x)
        return y, grads(y, [x])

    return call


@case("A full backward pre-hook that is registered later is ignored.", issue=117265)
def full_backward_pre_hook_that_comes_later(compile):
    module = layer()
    compiled = compile(lambda x: module(x))

    def call(step):
        if step == 1:
            module.register_full_backward_pre_hook(lambda m, given: tuple(2 * g for g in given))
        x = leaf(3, step=step)
        y = compiled(x)
        return y, grads(y, [x])

    return call


@case("A forward that is replaced on the instance is ignored.", issue=117265)
def a_forward_that_is_replaced(compile):
    module = layer()
    compiled = compile(lambda x: module(x))

    def call(step):
        if step == 1:
            module.forward = lambda x: 3.14 * x
        if step == 2:
            del module.forward
        return compiled(numbers(3, step=step))

    return call


@case("A forward hook that is registered later is ignored.", issue=117758)
def forward_hook_that_comes_later(compile):
    model = nn.Sequential(layer(), nn.Tanh(), layer())
    compiled = compile(model)
    handles = []

    def call(step):
        if step == 1:
            handles.append(model[0].register_forward_hook(lambda m, args, out: out * 10))
        if step == 2:
            handles.pop().remove()
        return compiled(numbers(2, 3, step=step))

    return call


@case("Hooks of saved tensors act on what was traced.", issue=116221)
def saved_tensors_hooks_outside(compile):
    compiled = compile(lambda a, b: a * b)

    def call(step):
        a, b = leaf(3, step=step), leaf(3, step=step, seed=1)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: 2 * x):
            y = compiled(a, b)
        return y, grads(y, [a, b])

    return call


@case("detach_ is lost: the tensor still requires grad.", issue=176854)
def detach_in_place(compile):
    def function(x):
        y = x * 2
        y.detach_()
        return y + 1, y, y * x

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        first, second, third = compiled(x)
        return first, second, third, grads(third, [x])

    return call


@case("A result made by unsqueeze_ is a view, and can't be written to.", issue=186561)
def a_result_made_by_unsqueeze_in_place(compile):
    def function(x):
        y = x * 2
        y.unsqueeze_(0)
        return y

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        y = compiled(x)
        is_view = y._is_view()
        y.mul_(3)
        return y, is_view, grads(y, [x])

    return call


@case("A view of an input, returned, can't be written to.", issue=186561)
def a_returned_view_that_is_written_to(compile):
    compiled = compile(lambda x: (x.view(-1), x.t()))

    def call(step):
        w = leaf(2, 3, step=step)
        x = w * 2
        flat, turned = compiled(x)
        flat.mul_(3)
        return flat, turned, x, autograd_state(x), grads([turned, x], [w])

    return call


@case("A tensor that requires grad from within is a plain result.", issue=107861)
def requires_grad_set_inside(compile):
    def function(x):
        wanted = x.requires_grad
        return x.clone().contiguous().detach().requires_grad_(wanted)

    compiled = compile(function)

    def call(step):
        x = leaf(2, 3, step=step)
        y = compiled(x)
        (y * 2).sum().backward()
        return y, y.is_leaf, y.grad, x.grad

    return call


@case(
    "A hook on a result doesn't see the gradient of another result that depends on it.",
    issue=132929,
)
def hook_on_a_result_that_another_depends_on(compile):
    def function(x):
        latent = x.sin()
        return latent, latent.exp()

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        latent, y = compiled(x)
        latent.register_hook(lambda grad: grad * 0)
        return y, grads(y, [x])

    return call
