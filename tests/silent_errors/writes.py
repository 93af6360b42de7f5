"""Writes in place: lost, seen too early or too late, or made in somebody else's memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.silent_errors.records import Group, leaf, numbers

GROUP = Group("Writes in place", [])
case = GROUP.case


@torch.library.custom_op("funcaot_silent::reverse_into", mutates_args=("target",))
def reverse_into(source: Tensor, target: Tensor) -> None:
    """Writes one row after the other, as a kernel does."""
    for row in range(len(source)):
        target[len(source) - 1 - row] = source[row]


@torch.library.custom_op("funcaot_silent::add_to_both", mutates_args=("first", "second"))
def add_to_both(first: Tensor, second: Tensor) -> None:
    """Writes to two arguments."""
    first.add_(1)
    second.add_(2)


@torch.library.custom_op("funcaot_silent::sum_into", mutates_args=("out",))
def sum_into(first: Tensor, second: Tensor, out: Tensor) -> None:
    """Writes a sum of two views."""
    out.copy_(first + second + 2)


def on_one_tensor(function):
    """A builder of calls that return what the function returned, and its argument."""

    def build(compile):
        compiled = compile(function)

        def call(step):
            x = numbers(4 + step, 6, step=step)
            return compiled(x), x

        return call

    return build


@case("Every row becomes the first: the clone that protects a read is removed.", issue=197829)
def shift_by_a_row(compile):
    def function(x):
        x[1:] = x[:-1].clone()
        return x.sum()

    return on_one_tensor(function)(compile)


@case("A custom op gets the tensor that it writes to as its source.", issue=198031)
def custom_op_and_a_clone(compile):
    def function(x):
        reverse_into(x.clone(), x)
        return x * 2

    return on_one_tensor(function)(compile)


@case("The values added are read while they are written.", issue=198033)
def foreach_add_of_a_flip(compile):
    def function(x):
        torch._foreach_add_([x], [x.flip(0)])
        return x

    return on_one_tensor(function)(compile)


@case("A copy back to the input is fused with a read of other rows.", issue=198270)
def index_put_and_then_a_flip(compile):
    def function(x):
        x.index_put_((torch.arange(x.size(0)),), x * 2.0)
        x.add_(x.flip(0))
        return x

    return on_one_tensor(function)(compile)


@case("A result lies in an input that is overwritten afterwards.", issue=198094)
def scatter_and_then_zero(compile):
    def function(x):
        y = torch.slice_scatter(x, x[1:3] * 2, 0, 1, 3)
        x.zero_()
        return y

    return on_one_tensor(function)(compile)


@case("A clone taken between two writes has the second one's values.", issue=198094)
def clone_between_two_writes(compile):
    def function(x):
        x.index_fill_(0, torch.tensor([1]), 5.0)
        y = x.clone()
        x.clamp_(max=0.5)
        return y

    return on_one_tensor(function)(compile)


@case("A result shares memory with the input that a partial write was copied to.", issue=195451)
def clone_of_a_partly_written_input(compile):
    def function(x):
        x[0] = x[1] * 2
        return x.clone()

    return on_one_tensor(function)(compile)


@case("A read of the input as another dtype happens after a later write.", issue=198101)
def view_of_another_dtype_and_a_write(compile):
    def function(x):
        y = x.view(torch.int32) * 2
        y.sub_(-4)
        x[:, 2:5] = 2
        return y.view(torch.int64)

    compiled = compile(function)

    def call(step):
        x = torch.arange(-12, 12 + 6 * step).reshape(-1, 6)
        return compiled(x), x

    return call


@case("What was computed before a write has the values of after it.", issue=94777)
def logarithm_before_a_write(compile):
    def function(x):
        y = torch.exp(x)
        x.exp_()
        return y

    return on_one_tensor(function)(compile)


@case("A write through what dropout returned in eval mode is lost.", issue=195422)
def write_through_dropout(compile):
    def function(x):
        y = F.dropout(x, 0.5, False)
        y += y
        return y

    return on_one_tensor(function)(compile)


@case("An index that appears twice is added twice.", issue=174074)
def the_same_row_twice(compile):
    def function(x):
        x[[0, 0]] += x[[0, 0]]
        return x

    return on_one_tensor(function)(compile)


@case("A clone before a reshape is left out, so the input is written to.", issue=114464)
def clone_and_reshape(compile):
    def function(x):
        y = x.clone().reshape(-1, 2)
        y[:, [1, 0]] = y[:, [0, 1]]
        return y

    return on_one_tensor(function)(compile)


@case("Two ops that write to views of one tensor lose a write.", issue=153389)
def custom_ops_on_views_of_one_tensor(compile):
    def function(a, b, out):
        add_to_both(a, b)
        sum_into(a[0], b[0], out)
        return out

    compiled = compile(function)

    def call(step):
        x = numbers(3, 2, 3, step=step)
        return compiled(x[0], x[1], x[2, 0]), x

    return call


@case("What follows an op that writes uses the values of before it.", issue=127821)
def custom_op_on_an_intermediate(compile):
    def function(x):
        y = torch.full_like(x, 1.0)
        reverse_into(x, y)
        return (y * y).sum()

    return on_one_tensor(function)(compile)


@case("Slices that are written to one after the other end up wrong in the input.", issue=94693)
def overlapping_slices(compile):
    def function(x):
        x[:, 2:5].add_(1)
        x[:, 1:4].add_(2)
        x[1:3, 0:3] += x[0:2, 2:5].clone()
        return x[:, 1:5]

    return on_one_tensor(function)(compile)


@case("A write made between two branches is lost for an older view.", issue=97083)
def branch_between_two_writes(compile):
    def function(x):
        a = x[0:1, 0]
        b = a.squeeze()
        a[0] = 0
        if a[0] < 1e5:
            a[0] = 2
        return b

    return on_one_tensor(function)(compile)


@case("Two results that were views of one intermediate overwrite each other.", issue=122457)
def complex_and_real_views(compile):
    def function(x):
        z = torch.view_as_complex(x + 1)
        a = torch.view_as_real(z)
        return a + 1, torch.view_as_real(z + 1)

    compiled = compile(function)
    return lambda step: compiled(numbers(4 + step, 2, step=step))


@case(
    "as_strided of a view counts from the view, not from the storage.",
    issue=104505,
    refuses="a write to what `as_strided` made of a view isn't supported",
)
def as_strided_of_a_diagonal(compile):
    def function(x):
        x.diagonal().as_strided((2,), (1,), 0).add_(1.0)
        return x

    return on_one_tensor(function)(compile)


@case("A write to a tensor with a stride of 0 goes astray.", issue=153861)
def write_to_a_tensor_with_a_stride_of_zero(compile):
    def function(x):
        x[0] = x[0] + 1
        return x

    compiled = compile(function)

    def call(step):
        x = numbers(2, step=step).as_strided((2, 1), (1, 0))
        return compiled(x), x

    return call


@case("resize_ of an input is lost.", issue=97921)
def resize_of_an_input(compile):
    def function(x):
        x.resize_(6)
        x.fill_(2)
        return x

    compiled = compile(function)

    def call(step):
        x = numbers(4, step=step)
        return compiled(x), x, x is compiled(x)

    return call


@case("resize_ of a view changes the shape of its base.", issue=191449)
def resize_of_a_view(compile):
    def function(x):
        base = x + 1
        base.view(-1).resize_(3)
        return base + 1

    return on_one_tensor(function)(compile)


@case("A tensor given another's storage still has its old shape.", issue=197399)
def set_to_a_slice(compile):
    def function(base):
        y = base[1:, 0]
        x = torch.empty(0)
        x.set_(y)
        return x[0] * 2

    return on_one_tensor(function)(compile)


@case("x + 0 is left out, and shows the values that x is set to later.", issue=174187)
def plus_zero_and_set(compile):
    def function(x, other):
        y = x + 0
        x.set_(other)
        return y, x + 1

    compiled = compile(function)

    def call(step):
        x, other = numbers(3, step=step), numbers(3, step=step, seed=1)
        return compiled(x, other), x, other

    return call


@case("x.data = y makes x share memory or lose its values.", issue=113030)
def assignment_to_data(compile):
    def function(x, y):
        x.data = y
        return x * 2

    compiled = compile(function)

    def call(step):
        x, y = numbers(3, step=step), numbers(4, step=step, seed=1)
        return compiled(x, y), x, y

    return call


@case("Equal results are one object: a write to one changes the other.", issue=None)
def equal_results(compile):
    def function(x):
        return x.clone(), x + 0, x * 1, torch.cat([x]), x.clone().detach()

    return on_one_tensor(function)(compile)


@case("A buffer rolled in place by concatenation reads what it has written.", issue=197829)
def rolling_buffer(compile):
    buffer = numbers(5, 3)

    def function(row):
        buffer.copy_(torch.cat([buffer[1:], row[None]]))
        return buffer.mean(0)

    compiled = compile(function)
    return lambda step: (compiled(numbers(3, step=step)), buffer.clone())


@case("Swapping two rows in place duplicates one.", issue=198270)
def swap_of_two_rows(compile):
    def function(x):
        x[0], x[1] = x[1].clone(), x[0].clone()
        x[[2, 3]] = x[[3, 2]]
        return x * 1

    return on_one_tensor(function)(compile)


@case("Inputs that overlap in memory are treated as if they didn't.", issue=None)
def overlapping_inputs(compile):
    def function(a, b):
        a.mul_(2)
        b.add_(a.sum())
        return a + 1, b * 3

    compiled = compile(function)

    def call(step):
        x = numbers(6, step=step)
        return compiled(x[:4], x[2:]), x

    return call


@case("out= of another size is ignored.", issue=178482)
def out_of_another_size(compile):
    compiled = compile(lambda x, out: torch.mul(x, 2, out=out))

    def call(step):
        out = torch.empty(0)
        return compiled(numbers(2, 3, step=step), out), out

    return call


@case("The statistics of a batch norm are those of another call.", issue=115774)
def batch_norm_statistics(compile):
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(3)
    compiled = compile(norm)

    def call(step):
        x = leaf(4 + step, 3, step=step)
        compiled(x).square().sum().backward()
        return (
            x.grad.clone(),
            norm.running_mean.clone(),
            norm.running_var.clone(),
            norm.num_batches_tracked.clone(),
        )

    return call
