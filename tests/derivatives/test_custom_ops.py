"""Ops of ``torch.library`` under every transform, to the order that their rules allow."""

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.library import custom_op

import funcaot
from funcaot.errors import MissingRuleError


@custom_op("funcaot_custom::sine", mutates_args=())
def sine(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy() * factor))


@custom_op("funcaot_custom::cosine", mutates_args=())
def cosine(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(np.cos(x.detach().numpy() * factor))


@custom_op("funcaot_custom::combined", mutates_args=())
def combined(parts: list[torch.Tensor], factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (parts[0] + parts[1] + parts[2]) * factor, parts[0] * parts[1]


@custom_op("funcaot_custom::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() ** 3)


@custom_op("funcaot_custom::cube_backward", mutates_args=())
def cube_backward(x: torch.Tensor, arriving: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(3 * x.detach().numpy() ** 2 * arriving.detach().numpy())


@custom_op("funcaot_custom::add_one", mutates_args=("x",))
def add_one(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def save(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1] if len(inputs) > 1 else None


def save_parts(ctx, inputs, output):
    ctx.save_for_backward(*inputs[0])
    ctx.factor = inputs[1]


def combined_backward(ctx, by_sum, by_product):
    first, second, _ = ctx.saved_tensors
    same = by_sum * ctx.factor
    return [same + by_product * second, same + by_product * first, same], None


for op in (sine, cosine):
    op.register_fake(lambda x, factor: torch.empty_like(x))
    op.register_vmap(
        lambda info, in_dims, x, factor, op=op: (op(x, factor), in_dims[0])
    )  # fmt: skip
cube.register_fake(torch.empty_like)
cube_backward.register_fake(lambda x, arriving: torch.empty_like(x))
add_one.register_fake(torch.empty_like)
combined.register_fake(lambda parts, _: (torch.empty_like(parts[0]), torch.empty_like(parts[0])))
sine.register_autograd(
    lambda ctx, g: (g * ctx.factor * cosine(ctx.saved_tensors[0], ctx.factor), None),
    setup_context=save,
)
cosine.register_autograd(
    lambda ctx, g: (-g * ctx.factor * sine(ctx.saved_tensors[0], ctx.factor), None),
    setup_context=save,
)
cube.register_autograd(lambda ctx, g: cube_backward(ctx.saved_tensors[0], g), setup_context=save)
combined.register_autograd(combined_backward, setup_context=save_parts)


# Each beside the same in torch's ops.
FUNCTIONS = {
    "sine": (lambda x: sine(x, 1.3) * x, lambda x: torch.sin(x * 1.3) * x),
    "lists": (
        lambda x: sum(combined([x, x.exp(), x.sin()], 3)),
        lambda x: 3 * (x + x.exp() + x.sin()) + x * x.exp(),
    ),
}


def loss_of(function):
    return lambda x: (function(x) * 1.3).sin().sum()


def repeated(order):
    def run(function, x):
        x = x.clone().requires_grad_()
        value = loss_of(function)(x)
        for step in range(order):
            (gradient,) = torch.autograd.grad(value, x, create_graph=step < order - 1)
            value = (gradient**2).sum()
        return gradient

    return run


def dual(function, x):
    x = x.clone().requires_grad_()
    with forward_ad.dual_level():
        moved = forward_ad.make_dual(x, x.detach().cos())
        (gradient,) = torch.autograd.grad(loss_of(function)(moved), x, create_graph=True)
        return forward_ad.unpack_dual(gradient).tangent


def twice(function, x):
    gradient = torch.func.grad(loss_of(function))
    return torch.func.grad(lambda x: (gradient(x) ** 2).sum())(x)


ASKED = {
    "value": lambda f, x: f(x),
    "first": repeated(1),
    "third": repeated(3),
    "grad": lambda f, x: torch.func.grad(loss_of(f))(x),
    "twice": twice,
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "product": lambda f, x: torch.func.jvp(torch.func.grad(loss_of(f)), (x,), (x.cos(),))[1],
    "dual": dual,
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(loss_of(f))(x),
}
BATCHED = {
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "vmap_of_grad": lambda f, x: torch.func.vmap(torch.func.grad(loss_of(f)))(x),
    "grad_of_vmap": lambda f, x: torch.func.grad(lambda x: torch.func.vmap(f)(x).sum())(x),
}


def inputs():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, 2 * x, torch.cat([x, x])


def agree(name, asked, change):
    """``change`` makes of a function what is asked for the same."""
    function, reference = FUNCTIONS[name]
    changed = change(function)
    for x in (*inputs(), inputs()[0]):
        torch.testing.assert_close(asked(changed, x), asked(reference, x))


def cases():
    for name in FUNCTIONS:
        for asked in ASKED:
            yield name, asked
    for asked in BATCHED:
        yield "sine", asked


ALL = {**ASKED, **BATCHED}
# What a fast run compiles.
FAST = {("sine", "third"), ("sine", "jvp"), ("sine", "vmap_of_grad"), ("lists", "product")}


def compiled_cases():
    for case in cases():
        yield pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "asked"), list(cases()))
def test_uncompiled(name, asked):
    with funcaot.install():
        agree(name, ALL[asked], lambda function: function)


@pytest.mark.parametrize(("name", "asked"), list(compiled_cases()))
def test_compiled(name, asked):
    agree(name, ALL[asked], lambda f: funcaot.compile(f, backend="eager"))


@pytest.mark.parametrize(("name", "asked"), list(compiled_cases()))
def test_inside_of_a_compiled_function(name, asked):
    if asked == "dual":
        pytest.skip("its forward-mode level is the caller's")
    function, reference = FUNCTIONS[name]
    compiled = funcaot.compile(lambda x: ALL[asked](function, x), backend="eager")
    for x in (*inputs(), inputs()[0]):
        torch.testing.assert_close(compiled(x), ALL[asked](reference, x))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["value", "first", "third", "product", "vmap_of_grad"])
def test_on_inductor(asked):
    agree("sine", ALL[asked], funcaot.compile)


@pytest.mark.parametrize("change", [lambda f: f, lambda f: funcaot.compile(f, backend="eager")])
def test_no_further_than_the_rules(change):
    """A backward without a formula: the first order is right, and the second is refused."""
    x = inputs()[0]
    with funcaot.install():
        found = repeated(1)(change(cube), x)
        torch.testing.assert_close(found, repeated(1)(lambda x: x**3, x))
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            repeated(2)(change(cube), x)


def test_tangents_are_not_dropped():
    """Torch gives no tangent, and no error, for any of these."""
    x = inputs()[0]
    inside = funcaot.compile(lambda x: torch.func.jvp(cube, (x,), (x,)), backend="eager")
    with pytest.raises(MissingRuleError, match="can't be transposed"):
        inside(x)
    with funcaot.install():
        with pytest.raises(MissingRuleError, match="can't be transposed"):
            torch.func.jvp(cube, (x,), (x,))
        with pytest.raises(MissingRuleError, match="writes to an argument"):
            torch.func.jvp(add_one, (x.clone(),), (x,))


def test_a_registered_jvp_comes_first():
    op = torch.ops.funcaot_custom.cube.default
    from funcaot.derivatives import table

    funcaot.register_derivative(op, jvp=lambda tangents, x: 3 * x**2 * tangents[0])
    try:
        x = inputs()[0]
        with funcaot.install():
            pushed = torch.func.jvp(cube, (x,), (x,))[1]
        torch.testing.assert_close(pushed, 3 * x**3)
    finally:
        table._table.pop(op)
        for listener in table._listeners:
            listener()


@custom_op("funcaot_custom::unknown_shape", mutates_args=())
def unknown_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


@custom_op("funcaot_custom::bare", mutates_args=())
def bare(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


@custom_op("funcaot_custom::unknown_without_formula", mutates_args=())
def without_formula(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


bare.register_fake(torch.empty_like)
unknown_shape.register_autograd(
    lambda ctx, g: g * torch.cos(ctx.saved_tensors[0]), setup_context=save
)
HOW = {
    "compiled": lambda asked, f, x: asked(funcaot.compile(f, backend="eager"), x),
    "inside": lambda asked, f, x: funcaot.compile(lambda x: asked(f, x), backend="eager")(x),
}
WITHOUT = [
    pytest.param(how, asked, marks=[] if asked in ("jvp", "grad") else [pytest.mark.slow])
    for how in HOW for asked in ALL if (how, asked) != ("inside", "dual")
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of loops over examples, and that it runs uncompiled
@pytest.mark.parametrize(("how", "asked"), WITHOUT)
def test_an_op_whose_shapes_nobody_knows(how, asked):
    """It can't be captured, so the call is made as it is: with the derivatives it would have."""
    x = inputs()[0]
    wanted = ALL[asked](torch.sin, x)
    for _ in range(2):
        torch.testing.assert_close(HOW[how](ALL[asked], lambda x: unknown_shape(x), x), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", ["bare", "unknown"])
@pytest.mark.parametrize(("how", "asked"), WITHOUT)
def test_without_a_formula_the_op_is_named(how, asked, op):
    function, x = {"bare": bare, "unknown": without_formula}[op], inputs()[0]
    if asked in ("value", "vmap"):
        wanted = ALL[asked](torch.sin, x)
        torch.testing.assert_close(HOW[how](ALL[asked], lambda x: function(x), x), wanted)
        return
    with pytest.raises(RuntimeError, match=f"{op}.*no autograd formula|{op}.* was differentiated"):
        HOW[how](ALL[asked], lambda x: function(x), x)
