"""Random numbers on the GPU: those of eager where asked for, and the same in every order."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

import funcaot
from tests.cuda.comparing import close, looks

DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout twice": lambda x: F.dropout(F.dropout(x, 0.3).sin(), 0.5),
    "rand": lambda x: x * torch.rand(len(x), 4, device=x.device),
    "randn_like": lambda x: x * torch.randn_like(x),
    "rand_like of a view": lambda x: x * torch.rand_like(x.t()).t(),
    "bernoulli": lambda x: x * torch.bernoulli(x.detach().sigmoid()),
    "normal_": lambda x: x * torch.empty_like(x).normal_(1, 2),
    "randint": lambda x: x * torch.randint(0, 9, (len(x), 1), device=x.device),
    "randperm": lambda x: x[torch.randperm(len(x), device=x.device)],
    "multinomial": lambda x: x[torch.multinomial(x.detach().sigmoid(), 1).squeeze(1) % len(x)],
    "both devices": lambda x: x * torch.rand(4).to(x.device) * torch.rand(4, device=x.device),
    "feature dropout": lambda x: F.dropout1d(x[None], 0.4),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "checkpoint": lambda x: checkpoint(lambda y: F.dropout(y.sin(), 0.4), x, use_reentrant=False),
}


def twice(function, x):
    x = x.clone().requires_grad_()
    value = function(x)
    (first,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return value, first, second, torch.rand(2, device=x.device), torch.rand(2)


@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("name", DRAWS)
def test_eagers_numbers(device, name, backend):
    with funcaot.config.patch(fallback_random=True):
        compiled = funcaot.compile(DRAWS[name], backend=backend)
        for rows in (5, 5, 7, 7):
            x = torch.randn(rows, 4, device=device, dtype=torch.float64)
            found = []
            for call in (DRAWS[name], compiled):
                torch.manual_seed(rows)
                found.append(looks(twice(call, x)))
            close(found[1], found[0])


@pytest.mark.parametrize("name", DRAWS)
def test_default_numbers_repeat_and_differ(device, name):
    compiled = funcaot.compile(DRAWS[name])
    x = torch.randn(64, 4, device=device, dtype=torch.float64)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append([looks(twice(compiled, x)), looks(twice(compiled, x))])
    close(runs[1][0], runs[0][0])
    close(runs[1][1], runs[0][1])
    for other in (runs[0][1], runs[2][0]):
        assert not torch.equal(other[0][0], runs[0][0][0][0])


@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_a_mask_is_the_same_in_every_order(device, backend):
    compiled = funcaot.compile(lambda x: F.dropout(x**3, 0.5), backend=backend)
    x = torch.randn(4096, device=device, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        value = compiled(x)
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        kept = value != 0
        torch.testing.assert_close(first, torch.where(kept, 6 * x**2, 0.0))
        torch.testing.assert_close(second, torch.where(kept, 12 * x, 0.0))
        assert 0.4 < kept.double().mean() < 0.6


@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("place", ["argument", "closed over"])
def test_a_generator_of_the_user(device, place, backend):
    generator = torch.Generator(device)

    def closed(x):
        return x * torch.rand(len(x), 4, device=x.device, generator=generator)

    def given(x, g):
        return x.clone().normal_(generator=g) + torch.rand(4, device=x.device, generator=g)

    function, more = (given, (generator,)) if place == "argument" else (closed, ())
    compiled = funcaot.compile(function, backend=backend)
    x = torch.randn(5, 4, device=device, dtype=torch.float64)
    for seed in range(3):
        found = []
        for call in (function, compiled):
            generator.manual_seed(seed)
            found.append((*looks([call(x, *more), call(x, *more)]), *looks(generator.get_state())))
        close(found[1], found[0])


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap(device, randomness):
    def function(x):
        return vmap(lambda row: row * torch.rand(4, device=x.device), randomness=randomness)(x)

    with funcaot.config.patch(fallback_random=True):
        compiled = funcaot.compile(function)
        x = torch.randn(5, 4, device=device, dtype=torch.float64)
        for seed in range(3):
            found = []
            for call in (function, compiled):
                torch.manual_seed(seed)
                found.append(looks([call(x), torch.rand(3, device=device)]))
            close(found[1], found[0])
