"""Custom ``autograd.Function``s whose rules or marks a compiler loses."""

from __future__ import annotations

import torch
from torch.autograd import Function

from tests.silent_errors.records import Group, autograd_state, grads, leaf, numbers

GROUP = Group("Custom Functions", [])
case = GROUP.case


class Straight(Function):
    """Rounds; its derivative is on purpose not that of the forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.round(x * 4) / 4

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1) * 3

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * (x.abs() < 1) * 3


class Product(Function):
    """A product and a sum, with a gradient for each argument."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b + a.sin() + b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * (b + a.cos()), grad * (a + 1)


class Scale(Function):
    """Multiplies its input in place and marks it."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


@case("The custom backward is dropped: the forward is differentiated instead.", issue=193279)
def custom_backward_under_grad(compile):
    compiled = compile(lambda x: torch.func.grad(lambda y: Straight.apply(y).sum())(x))
    return lambda step: compiled(numbers(4, step=step))


@case("The custom jvp is dropped, and the tangent is that of the forward.", issue=192985)
def custom_jvp_under_jvp(compile):
    compiled = compile(lambda x, t: torch.func.jvp(Straight.apply, (x,), (t,)))
    return lambda step: compiled(numbers(4, step=step), numbers(4, step=step, seed=1))


@case("Under jacfwd, the derivative is that of the forward, not that of the rule.", issue=192985)
def custom_jvp_under_jacfwd(compile):
    compiled = compile(lambda x: torch.func.jacfwd(Straight.apply)(x))
    return lambda step: compiled(numbers(3, step=step))


@case("The gradient is that of one of the two arguments.", issue=183604)
def same_tensor_passed_twice(compile):
    compiled = compile(lambda x: Product.apply(x, x))

    def call(step):
        x = leaf(5, step=step)
        y = compiled(x)
        return y, grads(y, [x])

    return call


@case("The gradient misses the factor of a Function whose result isn't used.", issue=184113)
def in_place_with_the_result_dropped(compile):
    def function(w, x):
        y = x @ w
        Scale.apply(y)
        return y

    compiled = compile(function)

    def call(step):
        w, x = leaf(3, 3, step=step), numbers(2, 3, step=step, seed=1)
        y = compiled(w, x)
        return y, grads(y, [w])

    return call


@case("mark_dirty is ignored: the input has no grad_fn and counts no version.", issue=133491)
def mark_dirty_on_an_input(compile):
    compiled = compile(lambda x: Scale.apply(x))

    def call(step):
        w = leaf(3, step=step)
        x = w * 2
        y = compiled(x)
        return y, x, autograd_state(x), grads(y, [w]), y is x

    return call


class Accumulates(Function):
    """Makes its result by writing in place, as kernels do."""

    @staticmethod
    def forward(ctx, x, w):
        y = torch.zeros_like(x)
        y += x * w
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


@case("The gradient goes to another slot if forward wrote in place.", issue=180642)
def in_place_inside_of_forward(compile):
    compiled = compile(lambda x, w: Accumulates.apply(x, w).exp())

    def call(step):
        x, w = leaf(4, step=step), leaf(4, step=step, seed=1)
        y = compiled(x, w)
        return y, grads(y, [x, w])

    return call


class NotMaterialized(Function):
    """Tells which gradients arrived."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        if second is None:
            return first * 100
        return first * 2 + second * 3


@case("set_materialize_grads is ignored: zeros arrive instead of None.", issue=118396)
def gradients_that_are_none(compile):
    compiled = compile(lambda x: NotMaterialized.apply(x))

    def call(step):
        x = leaf(4, step=step)
        first, second = compiled(x)
        used = first if step != 1 else first + second
        return first, second, grads(used, [x])

    return call


class WithIndices(Function):
    """Sorts, and marks a result of floating point as non-differentiable."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort()
        rank = order.to(x.dtype)
        ctx.save_for_backward(order)
        ctx.mark_non_differentiable(rank)
        return values, rank

    @staticmethod
    def backward(ctx, grad, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, order, grad)


@case("mark_non_differentiable is ignored: the result requires grad.", issue=118396)
def a_result_that_is_not_differentiable(compile):
    compiled = compile(lambda x: WithIndices.apply(x))

    def call(step):
        x = leaf(4, step=step)
        values, rank = compiled(x)
        return values, rank, grads(values, [x])

    return call


class CubeAndSlope(Function):
    """Returns its derivative beside its value, and saves what it returns."""

    @staticmethod
    def forward(ctx, x):
        slope = 3 * x**2
        ctx.save_for_backward(x, slope)
        return x**3, slope

    @staticmethod
    def backward(ctx, grad, grad_slope):
        x, slope = ctx.saved_tensors
        return grad * slope + grad_slope * 6 * x


@case("Results don't require grad, so a second application gets no gradient.", issue=129963)
def a_function_of_its_own_result(compile):
    compiled = compile(lambda x: CubeAndSlope.apply(CubeAndSlope.apply(x)[0])[0])

    def call(step):
        x = leaf(3, step=step)
        y = compiled(x)
        return y, grads(y, [x])

    return call


class CountsInBoth(Function):
    """Writes to a tensor in its forward, and to the same in its backward."""

    @staticmethod
    def forward(ctx, x, count):
        count.add_(1)
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.count.add_(10 * grad.detach().sum())
        return grad, None


@case("What backward writes is written by the forward.", issue=154820)
def backward_writes_to_a_tensor(compile):
    compiled = compile(lambda x, count: CountsInBoth.apply(x, count))

    def call(step):
        x, count = leaf(2, step=step), torch.zeros(())
        y = compiled(x, count)
        after_forward = count.clone()
        found = grads(y, [x])
        return after_forward, count, found

    return call


class WritesToGradient(Function):
    """Changes the gradient that it is given."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        grad.add_(1)
        return grad


@case("A backward that writes to its gradient changes the caller's, without a word.", issue=81417)
def backward_writes_to_its_gradient(compile):
    compiled = compile(lambda x: WritesToGradient.apply(x))

    def call(step):
        x, given = leaf(3, step=step), numbers(3, step=step, seed=1)
        y = compiled(x)
        (found,) = torch.autograd.grad(y, x, given)
        return found.clone(), given.clone()

    return call


class OnlyWhatIsNeeded(Function):
    """Decides in its forward what backward will need."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.needs = ctx.needs_input_grad
        ctx.save_for_backward(x if ctx.needs[1] else None, w if ctx.needs[0] else None)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return None if w is None else grad * w, None if x is None else grad * x


@case("needs_input_grad is another one in a capture than in eager.", issue=119059)
def needs_input_grad_in_forward(compile):
    compiled = compile(lambda x, w: OnlyWhatIsNeeded.apply(x.sin(), w))

    def call(step):
        x, w = leaf(3, step=step), leaf(3, step=step, seed=1)
        if step == 1:
            w = w.detach()
        y = compiled(x, w)
        return y, grads(y, [x, *([w] if w.requires_grad else [])])

    return call


class Passes(Function):
    """Returns its argument itself and gives no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return None


@case("A Function that returns its input loses its backward.", issue=134820)
def a_function_that_returns_its_input(compile):
    compiled = compile(lambda x: Passes.apply(x) * 2 + x)

    def call(step):
        x = leaf(3, step=step)
        y = compiled(x)
        return y, grads(y, [x])

    return call


@case("Gradients per sample are those of the forward, not of the rule.", issue=193279)
def custom_backward_per_sample(compile):
    def loss(w, x):
        return Straight.apply(w * x).sum()

    compiled = compile(lambda w, x: torch.vmap(torch.func.grad(loss), (None, 0))(w, x))
    return lambda step: compiled(numbers(3, step=step), numbers(4, 3, step=step, seed=1))


class Sines(Function):
    """Its backward is a Function too, with a rule of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return Product.apply(grad, x.cos())


@case("The second derivative is that of the graph, without the rules of Functions.", issue=91469)
def second_derivative_of_a_function(compile):
    compiled = compile(lambda x: Sines.apply(x))

    def call(step):
        x = leaf(3, step=step)
        (slope,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        return slope.detach().clone(), grads(slope, [x])

    return call
