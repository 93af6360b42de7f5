"""Backwards that hand over gradients before they have ended, against eager, in one process."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import funcaot
from funcaot.aot.runtime.module import compiled_of, hand_over_gradients
from tests.hostile import COMPILER


class _Tied(nn.Module):
    """Weights that are used twice, a frozen one, an unused one, one used last that comes first."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.table = nn.Embedding(7, 8)
        self.inside = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.frozen = nn.Parameter(torch.randn(8, 8), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x):
        x = x @ self.table.weight.t()[:, :7] @ self.table.weight
        for layer in self.inside:
            x = x + layer(x @ self.frozen).tanh()
        return (x * self.scale).sin()


class _Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.SiLU()),
            *(nn.Conv1d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU()),
        )

    def forward(self, x):
        first, second = self.layers(x.unsqueeze(1)).split(2, 1)
        return (first * second).flatten(1)


class _Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: layer(x).tanh(), x, use_reentrant=False)
        return x


MODELS = {
    "linear": lambda: nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())]
    ),
    "tied": _Tied,
    "convolutions": _Convolutions,
    "attention": lambda: nn.Sequential(
        nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    ),
    "checkpointed": _Checkpointed,
}


def _pair(name, limit=200, backend=COMPILER):
    """The eager model, and another one that is compiled; and the function that is."""
    torch.manual_seed(0)
    plain = MODELS[name]()
    module = copy.deepcopy(plain)
    model = funcaot.compile(module, backend=backend)
    hand_over_gradients(compiled_of(model), (limit,))
    return plain, model


def _parts(model) -> list[int]:
    """How many parts each backward has that runs in parts."""
    found, pending = [], [entry.functions for entry in compiled_of(model).entries]
    while pending:
        functions = pending.pop()
        if functions.parts is not None and functions.parts[0] is not None:
            found.append(sum(part.program is not None for part in functions.parts[0].parts))
        for made in functions.made:
            pending += [following for _, following in made.derivatives.backwards.values()]
    return found


def _gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def _loss(model, x, order):
    x = x.clone().requires_grad_()
    value = model(x).square().mean()
    for _ in range(order - 1):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.square().sum() + value
    return value, x


# Of attention torch has no second derivative.
_SLOW = (("tied", 3), ("convolutions", 2), ("attention", 1), ("convolutions", 1))
_CELLS = [("linear", 1), ("tied", 1), ("tied", 2), ("checkpointed", 1)]
_CELLS += [pytest.param(*cell, marks=pytest.mark.slow) for cell in _SLOW]


@pytest.mark.parametrize(("name", "order"), _CELLS)
def test_gradients_are_those_of_eager(name, order):
    models = _pair(name)
    for step in range(3):
        torch.manual_seed(step)
        x, found = torch.randn(5 - step % 2, 8), []
        for model in models:
            value, given = _loss(model, x, order)
            value.backward()  # Gradients accumulate over the steps.
            found.append([given.grad, *_gradients(model), *model.buffers()])
        torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)
    assert max(_parts(models[1])) > 1


def test_hooks_fire_once_and_before_later_parts():
    models, orders = _pair("linear"), []
    for model in models:
        seen, parameters = [], dict(model.named_parameters())
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(
                lambda _, name=name, seen=seen, parameters=parameters: seen.append(
                    (name, sum(each.grad is None for each in parameters.values()))
                )
            )
        for _ in range(3):
            model.zero_grad()
            seen.clear()
            _loss(model, torch.ones(2, 8), 1)[0].backward()
        orders.append(seen)
    eager, compiled = [[name for name, _ in seen] for seen in orders]
    assert sorted(compiled) == sorted(eager)
    # Layers in the order of eager, and each before the next has a gradient.
    assert [name[0] for name in compiled if "weight" in name] == [
        name[0] for name in eager if "weight" in name
    ]
    assert [left for _, left in orders[1]] == list(range(len(eager)))[::-1]


def test_a_hook_may_step():
    """The optimizer of a parameter runs as soon as its gradient is there, as in eager."""
    models = _pair("linear")
    for model in models:
        for parameter in model.parameters():

            def step(parameter):
                with torch.no_grad():
                    parameter -= 0.5 * parameter.grad
                parameter.grad = None

            parameter.register_post_accumulate_grad_hook(step)
    for order in (1, 2, 1):
        for model in models:
            _loss(model, torch.ones(2, 8), order)[0].backward()
        torch.testing.assert_close(
            list(models[1].parameters()), list(models[0].parameters()), rtol=1e-4, atol=1e-6
        )


def test_a_hook_that_changes_what_is_still_needed_is_refused():
    for model in _pair("linear"):
        parameters = dict(model.named_parameters())

        def change(_, parameters=parameters):
            with torch.no_grad():
                parameters["3.weight"].mul_(2)

        handle = parameters["9.weight"].register_post_accumulate_grad_hook(change)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                _loss(model, torch.ones(2, 8), 1)[0].backward()
        handle.remove()
        _loss(model, torch.ones(2, 8), 1)[0].backward()


def test_graphs_that_are_kept_shared_and_interleaved():
    results = []
    for model in _pair("linear"):
        first, _ = _loss(model, torch.ones(2, 8), 1)
        second, _ = _loss(model, torch.full((2, 8), 0.5), 1)
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
        (first_again, x), parameters = _loss(model, torch.ones(2, 8), 1), list(model.parameters())
        some = torch.autograd.grad(
            first_again, [x, parameters[0], parameters[-1]], retain_graph=True
        )
        first_again.backward(inputs=parameters[:3], retain_graph=True)
        first_again.backward()
        with pytest.raises(RuntimeError, match="second time"):
            first_again.backward()
        results.append([*some, *_gradients(model)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_an_error_in_a_hook_leaves_nothing_behind():
    plain, model = _pair("linear")
    parameter = model[6].weight

    def fail(_):
        raise ValueError("of a hook")

    for _ in range(2):
        handle = parameter.register_post_accumulate_grad_hook(fail)
        with pytest.raises(ValueError, match="of a hook"):
            _loss(model, torch.ones(2, 8), 1)[0].backward()
        handle.remove()
        model.zero_grad()
        plain.zero_grad()
        for each in (plain, model):
            _loss(each, torch.ones(2, 8), 1)[0].backward()
        torch.testing.assert_close(_gradients(model), _gradients(plain), rtol=1e-4, atol=1e-6)


def test_one_group_has_no_chain():
    _, model = _pair("linear", limit=10**9)
    value, _ = _loss(model, torch.ones(2, 8), 1)
    value.backward()
    (entry,) = compiled_of(model).entries
    assert entry.functions.keeping.early is None


def test_on_inductor():
    models = _pair("linear", backend="inductor")
    for _ in range(3):
        for model in models:
            _loss(model, torch.ones(2, 8), 1)[0].backward()
        torch.testing.assert_close(
            _gradients(models[1]), _gradients(models[0]), rtol=1e-4, atol=1e-6
        )
    assert _parts(models[1]) == [4]
