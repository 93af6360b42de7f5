"""Results: their strides, dtypes, place in the graph, and who shares memory with whom."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.silent_errors.records import Group, grads, leaf, numbers

GROUP = Group("What comes back", [])
case = GROUP.case


@case("A loss and its detached copy are one object, which has no gradient.", issue=100348)
def loss_and_detached_loss(compile):
    def function(x):
        loss = x.mean()
        return {"loss": loss, "shown": loss.detach()}

    compiled = compile(function)

    def call(step):
        x = leaf(4, 4, step=step)
        found = compiled(x)
        return found, grads(found["loss"], [x])

    return call


@case("A detached input requires grad.", issue="https://github.com/pytorch/functorch/issues/1052")
def detached_input(compile):
    compiled = compile(lambda x: (x.detach(), x.detach().sin()))

    def call(step):
        x = leaf(3, step=step)
        return *compiled(x), x

    return call


@case("enable_grad within no_grad gives a result without a gradient.", issue=114338)
def enable_grad_within_no_grad(compile):
    def function(x):
        with torch.enable_grad():
            y = x * 2
        return y, x * 2

    compiled = compile(function)

    def call(step):
        x = leaf(3, step=step)
        with torch.no_grad():
            y, z = compiled(x)
        return y, z, grads(y, [x])

    return call


@case("A tensor made by empty_strided comes back contiguous.", issue=130394)
def empty_strided(compile):
    def function(x):
        y = torch.empty_strided(x.size(), x.stride())
        y[:] = x + x
        return y

    compiled = compile(function)
    return lambda step: compiled(numbers(8, 8, step=step).as_strided((8, 4), (8, 1)))


@case("full_like of a permuted tensor comes back contiguous.", issue=144699)
def tensors_made_like_a_permuted_one(compile):
    def function(x):
        return torch.full_like(x, 3), torch.zeros_like(x), torch.ones_like(x) + x

    compiled = compile(function)
    return lambda step: compiled(numbers(4, 5, 6, step=step).transpose(1, -1))


@case("as_strided of a channels-last tensor reads other elements.", issue=174963)
def as_strided_of_channels_last(compile):
    compiled = compile(lambda x: torch.as_strided(torch.roll(x, -1, 0), (5, 10), (4, 1), 0))

    def call(step):
        x = torch.arange(100).reshape(2, 5, 2, 5) + step
        return compiled(x.to(memory_format=torch.channels_last))

    return call


@case("Nearest interpolation of a permuted tensor has other strides.", issue=183771)
def interpolation_of_a_permuted_tensor(compile):
    compiled = compile(lambda x: F.interpolate(x, size=(5, 6, 7), mode="nearest"))
    return lambda step: compiled(numbers(2, 5, 2, 3, 2, step=step).movedim(-1, 1))


@case("copysign and other ops of a transposed tensor have other strides.", issue=198364)
def arithmetic_of_a_transposed_tensor(compile):
    def function(a, b):
        return (
            torch.copysign(a, b),
            torch.floor_divide(a, b),
            torch.div(a, b, rounding_mode="floor"),
            torch.addr(a, b[:, 0], b[0], beta=0.0),
            a.put(torch.tensor([0, 7]), torch.tensor([1.0, 2.0])),
        )

    compiled = compile(function)
    return lambda step: compiled(numbers(6, 5, step=step).mT, numbers(5, 6, step=step, seed=1))


@case("lerp of tensors of different layouts has other strides.", issue=93336)
def lerp_of_two_layouts(compile):
    compiled = compile(lambda a, b: torch.lerp(b, a.transpose(0, 1), 0.7))
    return lambda step: compiled(numbers(6, 3, 5, step=step), numbers(3, 6, 5, step=step, seed=1))


@case("Special functions of a transposed tensor have other strides.", issue=113172)
def special_functions_of_a_transposed_tensor(compile):
    compiled = compile(lambda x: (torch.special.bessel_y0(x), torch.special.bessel_j1(x)))
    return lambda step: compiled(numbers(4, 5, step=step).abs().t() + 0.5)


@case("cat of one transposed tensor is that tensor, or contiguous.", issue=None)
def cat_of_one_transposed_tensor(compile):
    def function(x):
        return torch.cat([x.t()]), torch.cat([x.t(), x.t()]), F.pad(x.t(), (0, 0))

    compiled = compile(function)
    return lambda step: compiled(numbers(3, 4, step=step))


@case("A product of int8 matrices is int64.", issue=191308)
def int8_products(compile):
    compiled = compile(torch.matmul)

    def call(step):
        a = torch.full((1, 1, 2), 3 + step, dtype=torch.int8)
        return compiled(a, torch.ones(1, 2, 2, dtype=torch.int8))

    return call


@case("torch.Tensor(x.size()) holds the sizes instead of having them.", issue=196467)
def tensor_of_a_size(compile):
    compiled = compile(lambda x: torch.Tensor((x * 2).size()).fill_(1.0))
    return lambda step: compiled(numbers(1, 3 + step, step=step))


@case("The gradient of a convolution has other strides than eager's.", issue=197514)
def strides_of_a_convolution(compile):
    compiled = compile(lambda x, w: F.conv2d(x, w, stride=2, padding=2))

    def call(step):
        x, w = leaf(1, 3, 4, 4, step=step), leaf(3, 3, 3, 3, step=step, seed=1)
        y = compiled(x, w)
        return y, torch.autograd.grad(y.sum(), [x, w])

    return call


@case("Results that are views of one intermediate don't share memory.", issue=122457)
def views_of_one_intermediate(compile):
    def function(x):
        y = x * 2
        return y[0], y.t(), y.view(-1), y

    compiled = compile(function)

    def call(step):
        x = leaf(3, 4, step=step)
        row, turned, flat, whole = compiled(x)
        with torch.no_grad():
            flat.mul_(2)
        return row, turned, flat, whole, grads([whole], [x])

    return call


@case("An input that is returned is another tensor.", issue=113030)
def an_input_that_is_returned(compile):
    compiled = compile(lambda x, y: (x, y, x))

    def call(step):
        x, y = leaf(3, step=step), numbers(3, step=step, seed=1)
        first, second, third = compiled(x, y)
        return first is x, second is y, third is first, first, second, x, y

    return call


@case("A result is an inference tensor, or isn't one.", issue=101151)
def results_in_inference_mode(compile):
    compiled = compile(lambda x: (x * 2, x.view(-1)))

    def call(step):
        x = numbers(2, 3, step=step)
        with torch.inference_mode(step == 1):
            y, view = compiled(x)
        return y.is_inference(), view.is_inference(), y, view, x

    return call


@case("A conjugated tensor loses its conjugation on the way out.", issue=148950)
def conjugates(compile):
    compiled = compile(lambda z: (z.conj(), z + z.conj(), z.conj().imag, z.mH))

    def call(step):
        z = torch.complex(numbers(2, 3, step=step), numbers(2, 3, step=step, seed=1))
        found = compiled(z)
        return [value.resolve_conj().resolve_neg() for value in found], found[0].is_conj()

    return call
