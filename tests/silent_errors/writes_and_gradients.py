"""Writes in place to what has, or is needed for, a gradient."""

from __future__ import annotations

import torch

from tests.silent_errors.records import Group, autograd_state, grads, leaf, numbers, raised

GROUP = Group("Writes and gradients", [])
case = GROUP.case


@case("The base of a view that was written to keeps its old gradient.", issue=93363)
def write_to_a_view_given_as_input(compile):
    def function(x):
        x.mul_(3.0)

    compiled = compile(function)

    def call(step):
        w = leaf(6, step=step)
        base = w * 2
        view = base[::2]
        compiled(view)
        return base, view, autograd_state(base), grads(base, [w])

    return call


@case("The gradient of an input that is written to is zero.", issue=128035)
def detached_copy_and_a_write(compile):
    def function(x):
        before = x.detach()
        x.mul_(2)
        return x, before

    compiled = compile(function)

    def call(step):
        w = leaf(3, step=step)
        x = w * 2
        y, before = compiled(x)
        return y, before, y is x, grads(y, [w])

    return call


@case("A write in no_grad to a leaf raises, or is recorded.", issue=90844)
def write_to_a_leaf_in_no_grad(compile):
    def function(x):
        with torch.no_grad():
            x.mul_(2)
        return x * x

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        y = compiled(x)
        return y, x, autograd_state(x), grads(y, [x])

    return call


@case("A write through detach() raises for a leaf.", issue=95167)
def write_through_detach(compile):
    def function(x):
        x.detach().mul_(2)
        return x.sin() + 1

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        y = compiled(x)
        return y, x, autograd_state(x), grads(y, [x])

    return call


@case("A write through .data counts as a version.", issue=121353)
def write_through_data(compile):
    def function(x):
        y = x * 2
        x.data.mul_(3)
        return y + x

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        y = compiled(x)
        return y, x, autograd_state(x), grads(y, [x])

    return call


@case("Overwriting what backward needs is not noticed if a view of it was saved.", issue=197887)
def overwritten_after_the_call(compile):
    compiled = compile(lambda x, w: x @ w)

    def call(step):
        x, w = numbers(2, 3, step=step), leaf(3, 3, step=step, seed=1)
        y = compiled(x, w)
        x.mul_(0)
        return y, raised(lambda: y.sum().backward())

    return call


@case("Overwriting a batch that a linear layer saved is not noticed.", issue=197887)
def overwritten_batch_of_a_layer(compile):
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 2)
    compiled = compile(linear)

    def call(step):
        x = numbers(2, 4, 3, step=step)
        y = compiled(x)
        if step != 1:
            x.zero_()
        return raised(lambda: y.sum().backward())

    return call


@case("Overwriting a result that backward needs is not noticed.", issue=197887)
def overwritten_result(compile):
    compiled = compile(lambda x: x.exp())

    def call(step):
        y = compiled(leaf(3, step=step))
        y.mul_(2)
        return y, raised(lambda: y.sum().backward())

    return call


@case("Two results of one value are one tensor; writing to one changes a gradient.", issue=None)
def equal_results_with_a_gradient(compile):
    def function(x):
        y = x.exp()
        return y, y.clone(), y + 0

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        first, second, third = compiled(x)
        second.detach().mul_(10)
        return first, second, third, grads([first, third], [x])

    return call


@case("A clone in no_grad takes the gradient from what was cloned.", issue=114338)
def clone_in_no_grad(compile):
    def function(x):
        y = x.sin()
        with torch.no_grad():
            z = y.clone()
        return y, z

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        y, z = compiled(x)
        return y, z, grads(y, [x])

    return call


@case("A view that is written to after its base changed shape doubles the gradient.", issue=None)
def write_to_a_view_after_unsqueeze_in_place(compile):
    def function(x):
        base = x * 2
        view = base[0]
        base.unsqueeze_(0)
        view.mul_(3)
        return base.sum() + view.sum()

    compiled = compile(function)

    def call(step):
        x = leaf(2, 3, step=step)
        return grads(compiled(x), [x])

    return call


@case("Copying a batch into a view of a buffer loses the other rows' gradients.", issue=93363)
def rows_copied_into_a_buffer(compile):
    def function(rows, buffer):
        buffer[1:3].copy_(rows)
        return buffer.sin()

    compiled = compile(function)

    def call(step):
        rows, w = leaf(2, 3, step=step), leaf(4, 3, step=step, seed=1)
        buffer = w * 1
        y = compiled(rows, buffer)
        return y, buffer, grads([y, buffer], [rows, w])

    return call


@case("The same tensor passed twice and written to once gets half a gradient.", issue=183604)
def one_tensor_in_two_places(compile):
    def function(a, b):
        a.mul_(2)
        return a * b

    compiled = compile(function)

    def call(step):
        w = leaf(3, step=step)
        x = w * 1
        y = compiled(x, x if step != 1 else x.view(3))
        return y, x, grads(y, [w])

    return call
