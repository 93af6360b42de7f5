"""Derivatives inside a compiled function, and whole training steps, against eager."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from tests.aot.segment import orders_cases as cases


def same(actual, expected):
    assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def energy_and_forces(x, w):
    energy = ((x @ w).tanh() ** 2).sum()
    (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy, -gradient


def test_energy_and_forces_in_one_program():
    compiled = cases.compiled(energy_and_forces)
    x, w = cases.operands()

    def run(f):
        energy, forces = f(x, w)
        loss = energy + (forces**2).sum()
        return [energy, forces, *torch.autograd.grad(loss, (x, w))]

    same(run(compiled), run(energy_and_forces))
    assert funcaot.report(compiled).backward_traces == 1


def test_forces_and_stress():
    def function(x, w):
        strain = torch.zeros(4, 4, dtype=x.dtype, requires_grad=True)
        moved = x + x @ strain
        energy = ((moved @ w).tanh() ** 2).sum()
        forces, stress = torch.autograd.grad(energy, (x, strain), create_graph=True)
        return energy, -forces, stress

    compiled = cases.compiled(function)
    x, w = cases.operands()

    def run(f):
        loss = sum((part**2).sum() for part in f(x, w))
        return [*f(x, w), *torch.autograd.grad(loss, (x, w))]

    same(run(compiled), run(function))


def test_a_laplacian_by_repeated_grad():
    def laplacian(x, w):
        u = ((x @ w).tanh() ** 3).sum(-1)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        total = 0
        for i in range(x.shape[1]):
            (second,) = torch.autograd.grad(first[:, i].sum(), x, create_graph=True)
            total = total + second[:, i]
        return total

    compiled = cases.compiled(laplacian)
    x, w = cases.operands()

    def run(f):
        return [f(x, w), *torch.autograd.grad((f(x, w) ** 2).sum(), (x, w))]

    same(run(compiled), run(laplacian))


def test_grad_inside_without_create_graph():
    def function(x, w):
        (gradient,) = torch.autograd.grad(((x @ w) ** 3).sum(), x)
        return gradient * w.sum()

    compiled = cases.compiled(function)
    x, w = cases.operands()

    def run(f):
        return [f(x, w), *torch.autograd.grad(f(x, w).sum(), w)]

    same(run(compiled), run(function))
    assert not compiled(x.detach().requires_grad_(), w.detach()).requires_grad


def test_func_transforms_inside():
    def function(x, w):
        rows = torch.func.vmap(torch.func.grad(lambda row: ((row @ w).tanh() ** 2).sum()))(x)
        return rows, torch.func.jacrev(lambda w: (x @ w).tanh().sum(0))(w)

    compiled = cases.compiled(function)
    x, w = cases.operands()

    def run(f):
        rows, jacobian = f(x, w)
        loss = (rows**2).sum() + (jacobian**2).sum()
        return [rows, jacobian, *torch.autograd.grad(loss, (x, w))]

    same(run(compiled), run(function))


def net():
    torch.manual_seed(0)
    return cases.Net()


def data(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 2, (6,), generator=generator)


def make_step(model, optimizer, *, zero=True, **zero_options):
    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        if zero:
            optimizer.zero_grad(**zero_options)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov_foreach": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def trained(name, wrap, *, steps=5, **options):
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    step = wrap(make_step(model, optimizer, **options))
    losses = [step(*data(i)) for i in range(steps)]
    state = [
        value
        for p in model.parameters()
        for value in optimizer.state[p].values()
        if isinstance(value, torch.Tensor)
    ]
    gradients = [p.grad for p in model.parameters()]
    return losses, list(model.parameters()), gradients, state, step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_training_step(name):
    *expected, _ = trained(name, lambda f: f)
    *actual, step = trained(name, cases.compiled)
    same(actual, expected)
    counted = funcaot.report(step)
    assert counted.graphs_compiled >= 1
    step(*data(9))
    again = funcaot.report(step)
    assert again.graphs_compiled == counted.graphs_compiled
    assert again.cache_misses == counted.cache_misses


@pytest.mark.parametrize(
    "options", [{"zero": False}, {"set_to_none": False}, {"set_to_none": True}], ids=str
)
@pytest.mark.parametrize("name", ["momentum", "adam_foreach"])
def test_gradients_accumulate_are_zeroed_or_set_to_none(name, options):
    *expected, _ = trained(name, lambda f: f, **options)
    *actual, _ = trained(name, cases.compiled, **options)
    same(actual, expected)


def test_backward_alone_accumulates_into_real_gradients():
    models = net(), net()
    functions = []
    for model, wrap in zip(models, (lambda f: f, cases.compiled), strict=True):

        def function(x, y, model=model):
            nn.functional.cross_entropy(model(x), y).backward()

        functions.append(wrap(function))
    for step in range(4):
        for function in functions:
            assert function(*data(step)) is None
        if step == 2:
            for model in models:
                model.zero_grad()
        first, second = ([p.grad for p in m.parameters()] for m in models)
        if step != 2:
            same(second, first)


def test_accumulation_in_place_keeps_the_identity_of_grad():
    model = net()

    def function(x, y):
        nn.functional.cross_entropy(model(x), y).backward()

    compiled = cases.compiled(function)
    compiled(*data(0))
    before = [(p.grad, p.grad._version) for p in model.parameters()]
    compiled(*data(1))
    for p, (gradient, version) in zip(model.parameters(), before, strict=True):
        assert p.grad is gradient
        assert gradient._version == version + 1


def test_an_argument_gets_its_gradient():
    def function(x, w):
        (x @ w).tanh().sum().backward()
        return x.grad * 2

    compiled = cases.compiled(function)
    for _ in range(2):
        ours, theirs = cases.operands(), cases.operands()
        for mine, other in zip(ours, theirs, strict=True):
            other.data.copy_(mine.data)
        same(compiled(*ours), function(*theirs))
        same([t.grad for t in ours], [t.grad for t in theirs])
        same(compiled(*ours), function(*theirs))
        same([t.grad for t in ours], [t.grad for t in theirs])


def test_setting_grad_to_none():
    model = net()
    for p in model.parameters():
        p.grad = torch.ones_like(p)

    def function():
        for p in model.parameters():
            p.grad = None

    compiled = cases.compiled(function)
    compiled()
    assert all(p.grad is None for p in model.parameters())


def test_clipping_and_reading_gradients():
    def make(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss.detach(), norm

        return step

    results = []
    for wrap in (lambda f: f, cases.compiled):
        model = net()
        step = wrap(make(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        results.append([[step(*data(i)) for i in range(3)], list(model.parameters())])
    same(*results)


def test_a_changed_learning_rate_is_respected():
    results = []
    for wrap in (lambda f: f, cases.compiled):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step = wrap(make_step(model, optimizer))
        for i in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + i // 3)
            step(*data(i))
        results.append(list(model.parameters()))
    same(*results)


def test_a_learning_rate_in_a_tensor_is_an_input():
    results = []
    for wrap in (lambda f: f, cases.compiled):
        model = net()
        rate = torch.tensor(0.1, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        step = wrap(make_step(model, optimizer))
        for i in range(6):
            rate.fill_(0.1 / (1 + i))
            step(*data(i))
        results.append(list(model.parameters()))
    same(*results)
    assert funcaot.report(step).cache_misses == 2


def five_times(p):
    p.grad.mul_(5)


@pytest.mark.parametrize("kind", ["tensor", "accumulated"])
def test_hooks_on_parameters_fire(kind):
    results = []
    for wrap in (lambda f: f, cases.compiled):
        model = net()
        if kind == "tensor":
            for p in model.parameters():
                p.register_hook(lambda gradient: gradient * 3)
        else:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(five_times)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = wrap(make_step(model, optimizer))
        for i in range(3):
            step(*data(i))
        results.append([list(model.parameters()), [p.grad for p in model.parameters()]])
    same(*results)


def test_a_hook_that_is_added_later_fires():
    results = []
    for wrap in (lambda f: f, cases.compiled):
        model = net()
        step = wrap(make_step(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        step(*data(0))
        step(*data(1))
        next(model.parameters()).register_hook(lambda gradient: gradient * 0)
        step(*data(2))
        results.append([p.grad for p in model.parameters()])
    same(*results)


def test_backward_under_a_transform_raises():
    def function(x):
        y = x.sin().sum()
        y.backward()
        return y

    with pytest.raises(RuntimeError):
        torch.func.grad(function)(torch.randn(3))
    with pytest.raises((RuntimeError, funcaot.errors.UnsupportedError)):
        torch.func.grad(cases.compiled(function))(torch.randn(3))


@pytest.mark.slow
def test_the_step_on_inductor():
    *expected, _ = trained("adam", lambda f: f)
    *actual, _ = trained("adam", lambda f: cases.compiled(f, "inductor"))
    same(actual, expected)


def test_state_of_the_optimizer_can_be_saved_and_loaded():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = cases.compiled(make_step(model, optimizer))
    for i in range(3):
        step(*data(i))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    first = [step(*data(i)) for i in range(3, 6)]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    same([step(*data(i)) for i in range(3, 6)], first)


def adapted(parameters, x, y, *, steps=2, rate=0.1):
    """Parameters after some inner steps, differentiable with respect to those before."""
    for _ in range(steps):
        loss = nn.functional.mse_loss(torch.tanh(x @ parameters[0]) @ parameters[1], y)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        parameters = [p - rate * g for p, g in zip(parameters, gradients, strict=True)]
    return parameters


def meta_loss(parameters, support, query):
    weights = adapted(parameters, *support)
    return nn.functional.mse_loss(torch.tanh(query[0] @ weights[0]) @ weights[1], query[1])


@pytest.mark.parametrize("whole", [False, True], ids=["loss", "step"])
def test_meta_learning_trains_as_in_eager(whole):
    curves = []
    for wrap in (lambda f: f, cases.compiled):
        generator = torch.Generator().manual_seed(0)
        draw = lambda *s, g=generator: torch.randn(*s, dtype=torch.float64, generator=g)  # noqa: E731
        parameters = [nn.Parameter(draw(1, 8)), nn.Parameter(draw(8, 1))]
        optimizer = torch.optim.Adam(parameters, lr=0.05)
        loss_function = meta_loss if whole else wrap(meta_loss)

        def step(
            support, query, parameters=parameters, optimizer=optimizer, loss_function=loss_function
        ):
            loss = loss_function(parameters, support, query)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if whole:
            step = wrap(step)
        losses = []
        for _ in range(8):
            phase, support, query = draw(1), draw(5, 1), draw(5, 1)
            tasks = [(x, torch.sin(x + phase)) for x in (support, query)]
            losses.append(step(*tasks))
        curves.append([*losses, *parameters])
    same(curves[1], curves[0])
