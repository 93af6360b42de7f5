"""Recurrent layers called with given parameters, compiled, at every order, against others."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vjp, vmap

import funcaot
from tests.derivatives.modules.recurrent import LAYERS, drawn

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
BACKENDS = ["eager", pytest.param(None, id="inductor", marks=pytest.mark.slow)]


def compiled(function, backend):
    return (
        funcaot.compile(function) if backend is None else funcaot.compile(function, backend=backend)
    )


def loss_of(function):
    """Curved in all that comes out."""

    def loss(parameters, x):
        found = function(parameters, x)
        return (
            torch.linspace(0.3, 1.2, found.numel(), dtype=found.dtype) * (found * 2).sin()
        ).sum()

    return loss


def directions(parameters, x, seed=40):
    """One for each parameter and for the input."""
    along = {name: drawn(p.shape, seed + i) for i, (name, p) in enumerate(parameters.items())}
    return along, drawn(x.shape, seed - 1)


def forward(function, parameters, x):
    return function(parameters, x)


def gradient(function, parameters, x):
    return grad(loss_of(function), argnums=(0, 1))(parameters, x)


def pushed(function, parameters, x):
    return jvp(function, (parameters, x), directions(parameters, x))


def pushed_twice(function, parameters, x):
    def once(parameters, x):
        return jvp(function, (parameters, x), directions(parameters, x))[1]

    return jvp(once, (parameters, x), directions(parameters, x, 60))


def over_data(function, parameters, x):
    return vmap(function, (None, 0))(parameters, torch.stack([x, x.flip(0) * 0.7]))


def gradients_over_data(function, parameters, x):
    inputs = torch.stack([x, x.flip(0) * 0.7])
    return vmap(grad(loss_of(function), argnums=(0, 1)), (None, 0))(parameters, inputs)


def ensemble(function, parameters, x):
    many = {name: torch.stack([p, p * 0.6, p.sin()]) for name, p in parameters.items()}
    return vmap(function, (0, None))(many, x)


def gradients_of_an_ensemble(function, parameters, x):
    many = {name: torch.stack([p, p * 0.6, p.sin()]) for name, p in parameters.items()}
    inputs = torch.stack([x, x * 0.5, x.cos()])
    return vmap(grad(loss_of(function)))(many, inputs)


def forward_over_reverse(function, parameters, x):
    return jvp(grad(loss_of(function), argnums=(0, 1)), (parameters, x), directions(parameters, x))[
        1
    ]


def reverse_over_reverse(function, parameters, x):
    pull = vjp(grad(loss_of(function), argnums=(0, 1)), parameters, x)[1]
    return pull(directions(parameters, x))


def reverse_over_forward(function, parameters, x):
    def along(parameters, x):
        return jvp(loss_of(function), (parameters, x), directions(parameters, x))[1]

    return grad(along, argnums=(0, 1))(parameters, x)


def products_of_an_ensemble(function, parameters, x):
    many = {name: torch.stack([p, p * 0.6]) for name, p in parameters.items()}
    return vmap(lambda p: forward_over_reverse(function, p, x))(many)


def curvature(function, parameters, x):
    return hessian(loss_of(function), argnums=1)(parameters, x)


def double_backward(function, parameters, x):
    """By autograd, to the third order."""
    leaves = [p.detach().clone().requires_grad_() for p in (*parameters.values(), x)]
    value, found = loss_of(function)(dict(zip(parameters, leaves, strict=False)), leaves[-1]), []
    for order in range(3):
        given = torch.autograd.grad(value, leaves, create_graph=order < 2, materialize_grads=True)
        found.append([g.detach() for g in given])
        value = sum((g * p.detach().cos()).sum() for g, p in zip(given, leaves, strict=True))
    return found


WAYS = {
    way.__name__: way
    for way in (
        forward,
        gradient,
        pushed,
        pushed_twice,
        over_data,
        gradients_over_data,
        ensemble,
        gradients_of_an_ensemble,
        forward_over_reverse,
        reverse_over_reverse,
        reverse_over_forward,
        products_of_an_ensemble,
        curvature,
        double_backward,
    )
}
INSIDE = [way for way in WAYS if way != "double_backward"]
# What runs in each run of the tests; the others are slow.
FAST = {
    ("LSTM", "gradient"),
    ("LSTM", "forward_over_reverse"),
    ("tanh_cell_state", "pushed_twice"),
    ("LSTM_projected", "ensemble"),
    ("GRU_alone", "gradients_of_an_ensemble"),
    ("GRU_cell_state", "double_backward"),
}
FAST_INSIDE = {("LSTM", "gradients_of_an_ensemble"), ("GRU", "gradient")}
ON_INDUCTOR = [
    ("LSTM", "gradient"),
    ("GRU", "double_backward"),
    ("LSTM_projected", "gradients_of_an_ensemble"),
    ("GRU_cell_state", "products_of_an_ensemble"),
    ("relu", "forward_over_reverse"),
]


SLOW = {"LSTM", "GRU", "LSTM_projected", "tanh_cell_state"}


def chosen(ways, fast):
    """Each layer in each way; two layers in both directions take half a minute for some."""

    def marks(name, way):
        if (name, way) in fast:
            return []
        return [pytest.mark.slow] if name in SLOW else [pytest.mark.slow, pytest.mark.long]

    cases = [pytest.param(name, way, marks=marks(name, way)) for name in LAYERS for way in ways]
    return pytest.mark.parametrize(("name", "way"), cases)


def agree(call, layer, parameters, way):
    """Three calls, the last with other values."""
    for step in (0, 0, 1):
        x = layer.input(step)
        values = {name: p * (1 + 0.3 * step) for name, p in parameters.items()}
        wanted = WAYS[way](layer.plain, values, x)
        torch.testing.assert_close(call(values, x), wanted, rtol=1e-8, atol=1e-9)


def parts(name):
    layer = LAYERS[name]
    module = layer.module()
    return layer, module, {n: p.detach() for n, p in module.named_parameters()}


@chosen(WAYS, FAST)
def test_a_compiled_layer(name, way):
    layer, module, parameters = parts(name)
    function = compiled(layer.fused(module), "eager")
    agree(lambda p, x: WAYS[way](function, p, x), layer, parameters, way)


@chosen(INSIDE, FAST_INSIDE)
def test_a_compiled_derivative(name, way):
    layer, module, parameters = parts(name)
    fused = layer.fused(module)
    agree(compiled(lambda p, x: WAYS[way](fused, p, x), "eager"), layer, parameters, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), ON_INDUCTOR)
def test_on_inductor(name, way):
    layer, module, parameters = parts(name)
    function = compiled(layer.fused(module), None)
    agree(lambda p, x: WAYS[way](function, p, x), layer, parameters, way)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", WAYS)
def test_all_on_inductor(name, way):
    layer, module, parameters = parts(name)
    function = compiled(layer.fused(module), None)
    agree(lambda p, x: WAYS[way](function, p, x), layer, parameters, way)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_an_ensemble_of_modules(kind, backend):
    """As the documentation of ``torch.func`` makes one, against each module alone."""
    torch.manual_seed(2)
    modules = [getattr(torch.nn, kind)(3, 2).double() for _ in range(3)]
    state, buffers = stack_module_state(modules)
    x = drawn((4, 2, 3), 1)

    def loss(values, x):
        return (functional_call(modules[0], values, (x,))[0] * 2).sin().sum()

    run = compiled(lambda values, x: vmap(grad(loss), (0, None))(values, x), backend)
    assert not buffers
    for step in range(3):
        scaled = {name: value.detach() * (1 + 0.2 * step) for name, value in state.items()}
        found = run(scaled, x)
        for place, module in enumerate(modules):
            one = {name: value[place].requires_grad_() for name, value in scaled.items()}
            total = (functional_call(module, one, (x,))[0] * 2).sin().sum()
            wanted = torch.autograd.grad(total, list(one.values()))
            for value, name in zip(wanted, one, strict=True):
                torch.testing.assert_close(found[name][place], value)


def kept_by(module):
    return [*module._flat_weights, *(reference() for reference in module._flat_weight_refs)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_layer_knows_of_its_weights(backend):
    """It keeps lists of those that it was last called with, also weakly."""
    torch.manual_seed(0)
    module, eager = torch.nn.GRU(3, 2), torch.nn.GRU(3, 2)
    x = torch.randn(4, 2, 3)
    run = compiled(lambda values, x: functional_call(module, values, (x,))[0], backend)
    for step in range(3):
        values = {n: p.detach() * (step + 1) for n, p in module.named_parameters()}
        torch.testing.assert_close(run(values, x), functional_call(eager, values, (x,))[0])
        pairs = zip(kept_by(module), kept_by(eager), strict=True)
        assert all(found is wanted for found, wanted in pairs)
    eager.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x), eager(x))  # which looks whether they are others now
    assert all(a is b for a, b in zip(kept_by(module), 2 * [*module.parameters()], strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_between_eager_and_compiled_transforms(backend):
    """What a transform leaves in a layer is of a level that has ended."""
    torch.manual_seed(0)
    module, eager = torch.nn.LSTM(3, 2), torch.nn.LSTM(3, 2)
    eager.load_state_dict(module.state_dict())
    x = torch.randn(4, 2, 3)

    def gradients(layer):
        def loss(values, x):
            return functional_call(layer, values, (x,))[0].sin().sum()

        return lambda values, x: vmap(grad(loss), (0, None))(values, x)

    whole, layer = compiled(gradients(module), backend), compiled(module, backend)
    values = {n: torch.stack([p.detach(), p.detach() * 2]) for n, p in eager.named_parameters()}
    for step in range(3):
        wanted = gradients(eager)(values, x + step)
        torch.testing.assert_close(whole(values, x + step), wanted)
        torch.testing.assert_close(gradients(module)(values, x + step), wanted)
        torch.testing.assert_close(layer(x + step), eager(x + step))
        torch.testing.assert_close(whole(values, x), gradients(eager)(values, x))
        torch.testing.assert_close(module(x), eager(x))
