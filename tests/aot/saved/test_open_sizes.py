"""Programs that leave sizes open come out of a file like others, and serve sizes that none saw."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import funcaot
from tests.aot.saved.reloading import is_loaded, misses


def weights():
    torch.manual_seed(2)
    return torch.randn(4, 4, dtype=torch.float64, requires_grad=True)


def inputs(size):
    torch.manual_seed(size)
    return torch.randn(size, 4, dtype=torch.float64, requires_grad=True)


def views(x, w):
    y = (x @ w).tanh()
    return y.sum(-1), x.t(), x[: x.shape[0] // 2], y.view(-1)[1:]


def writes(x, w):
    scaled = x.detach().clone()
    scaled[1:].mul_(x.shape[0])
    y = scaled * x
    y.add_(1)
    return y @ w, y.t()


def pairs(x, w):
    apart = x.unsqueeze(0) - x.unsqueeze(1)
    return torch.exp(-(apart @ w).square()).sum((1, 2)), x.shape[0], len(x) * 2


def joined(x, w):
    both = torch.cat([x, x @ w])
    return F.softmax(both, 0).reshape(2, x.shape[0], -1), both.mean() / x.shape[0]


def attended(x, w):
    return F.scaled_dot_product_attention(x[None], (x @ w)[None], x[None]) + x.new_ones(len(x), 1)


def branching(x, w):
    return (x @ w).sin() if x.shape[0] > 4 else (x @ w).exp()


def convolved(x, w):
    return F.conv1d(x.t()[None], w[:, :, None].expand(4, 4, 3), padding=1).square()


FUNCTIONS = {f.__name__: f for f in (views, writes, pairs, joined, attended, branching, convolved)}

# Torch's formulas for these are traced for one size each, saved or not.
ONE_SIZE = {("joined", 2), ("convolved", 2)}


def tensors(value):
    found = value if isinstance(value, tuple) else (value,)
    return [each for each in found if isinstance(each, torch.Tensor)]


def gradients(function, size, order):
    """Results and derivatives up to an order, with strides and what isn't a tensor."""
    x, w = inputs(size), weights()
    value = function(x, w)
    found, made = [], [each for each in tensors(value) if each.requires_grad]
    for step in range(order):
        loss = sum((each.cos() * each).sum() for each in made)
        made = torch.autograd.grad(loss, (x, w), create_graph=step < order - 1)
        found += made
    seen = [*tensors(value), *found]
    others = [each for each in value if not isinstance(each, torch.Tensor)]
    return seen, [each.stride() for each in seen], others


def check(compiled, function, size, order):
    ours = gradients(compiled, size, order)
    with funcaot.install():  # For torch from 2.15 on, attention has one derivative.
        theirs = gradients(function, size, order)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=1e-11)
    assert ours[1:] == theirs[1:]


def saved(function, path, order, backend):
    compiled = funcaot.compile(function, backend=backend)
    for size in (5, 6, 7):
        check(compiled, function, size, order)
    written = compiled.save(path)
    assert written.programs == len(compiled.entries), str(written)
    return funcaot.compile(function, backend=backend, artifacts=path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "programs"


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_that_were_never_saved(name, order, path):
    compiled = saved(FUNCTIONS[name], path, order, "eager")
    for size in (9, 5, 12):  # 5 has a program of its own
        for _ in range(2):
            check(compiled, FUNCTIONS[name], size, order)
    assert is_loaded(compiled)
    assert misses(compiled) == 0
    if (name, order) not in ONE_SIZE:
        assert compiled.settings.statistics.backward_traces == 0


@pytest.mark.parametrize(("name", "had", "wanted"), [
    *((name, 1, 2) for name in FUNCTIONS), ("pairs", 0, 2), ("views", 2, 3), ("joined", 0, 1),
])  # fmt: skip
def test_derivatives_that_were_not_saved(name, had, wanted, path):
    compiled = saved(FUNCTIONS[name], path, had, "eager")
    for size in (9, 12, 5, 9):
        check(compiled, FUNCTIONS[name], size, wanted)
    assert is_loaded(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_inductor(name, path):
    compiled = saved(FUNCTIONS[name], path, 1, "inductor")
    for size in (9, 5, 40, 9):
        check(compiled, FUNCTIONS[name], size, 1)
    check(compiled, FUNCTIONS[name], 11, 2)
    assert is_loaded(compiled)


def test_training_with_batches_of_any_size_on_inductor(path):
    def model():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)
        ).double()

    def step(model, size):
        loss = model(inputs(size)).square().sum()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        return loss.detach()

    first = funcaot.compile(model(), dynamic=True)
    step(first, 6)
    assert first.save(path).programs == 1
    eager, ours = model(), model()
    compiled = funcaot.compile(ours, dynamic=True, artifacts=path)
    for size in (5, 9, 6):
        torch.testing.assert_close(step(compiled, size), step(eager, size))
    for mine, other in zip(ours.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other)
    statistics = funcaot.report(compiled)
    assert statistics.cache_misses == statistics.graphs_compiled == 0


def test_sizes_for_which_another_way_is_right_are_a_miss_with_a_reason(path):
    compiled = saved(branching, path, 1, "eager")
    for size in (3, 9):
        check(compiled, branching, size, 1)
    small, large = compiled.entries
    assert "no call of such sizes was saved" in small.reason
    assert (misses(compiled), is_loaded(compiled)) == (1, False)
    assert not large.reason


@pytest.mark.parametrize("change", ["strides", "dtype", "rank", "tied sizes", "one"])
def test_calls_that_look_otherwise_are_a_miss(change, path):
    def function(x, y):
        return (x + y).sin()

    def pair(size, other=None):
        return torch.ones(size, 3), torch.ones(other or size, 3)

    first = funcaot.compile(function, backend="eager", dynamic=True)
    first(*pair(5))
    assert first.save(path).programs == 1
    compiled = funcaot.compile(function, backend="eager", dynamic=True, artifacts=path)
    x, y = {
        "strides": (torch.ones(3, 5).t(), torch.ones(5, 3)),
        "dtype": tuple(each.double() for each in pair(5)),
        "rank": (torch.ones(5, 3), torch.ones(2, 5, 3)),
        "tied sizes": pair(5, 1),
        "one": pair(1),
    }[change]
    torch.testing.assert_close(compiled(x, y), function(x, y))
    assert misses(compiled) == 1
    assert str(path) in funcaot.report(compiled).entries[0].reason
    assert torch.equal(compiled(*pair(8)), function(*pair(8)))
    assert misses(compiled) == 1


def test_code_that_changed_is_a_miss(path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.helper", lambda y: y.sin())
    first = funcaot.compile(with_helper, backend="eager", dynamic=True)
    first(inputs(5))
    assert first.save(path).programs == 1
    monkeypatch.setattr(f"{__name__}.helper", lambda y: y.cos())
    compiled = funcaot.compile(with_helper, backend="eager", dynamic=True, artifacts=path)
    for size in (5, 7):
        assert torch.equal(compiled(inputs(size)), with_helper(inputs(size)))
    assert misses(compiled) == 1


def helper(y):
    return y


def with_helper(x):
    return helper(x * 2)


def test_what_was_loaded_is_saved_again(path, tmp_path):
    compiled = saved(pairs, path, 2, "eager")
    check(compiled, pairs, 9, 2)
    again = tmp_path / "again"
    assert compiled.save(again).programs == 1
    third = funcaot.compile(pairs, backend="eager", artifacts=again)
    check(third, pairs, 10, 2)
    assert is_loaded(third)
    assert third.settings.statistics.backward_traces == 0


def test_transforms_of_a_loaded_function(path):
    compiled = saved(pairs, path, 1, "eager")
    x, w = inputs(9).detach(), weights().detach()
    for transform in (torch.func.grad, torch.func.hessian):
        found = [transform(lambda x, f=f: f(x, w)[0].sum())(x) for f in (compiled, pairs)]
        torch.testing.assert_close(*found)
    check(compiled, pairs, 9, 1)
    assert any(type(entry).__name__ == "LoadedEntry" for entry in compiled.entries)


@pytest.mark.slow
def test_other_sizes_in_another_process_import_no_compiler(tmp_path):
    """The graphs run as captured, so that what is imported is the calls' doing."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, funcaot\n"
        "f = funcaot.compile(torch.nn.Linear(3, 2), backend='eager', artifacts=sys.argv[1])\n"
        "for size in (4, 5, 6):\n"
        "    f(torch.rand(size, 3)).sum().backward()\n"
        "f.save(sys.argv[1])\n"
        "report = funcaot.report(f)\n"
        "print(report.cache_misses, report.graphs_compiled, 'torch._dynamo' in sys.modules)\n"
    )
    folder = Path(__file__).parents[3]
    found = [
        subprocess.run(
            [sys.executable, str(script), str(tmp_path / "programs")],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout.split()
        for _ in range(2)
    ]
    assert found[0][2] == "True"
    assert found[1] == ["0", "0", "False"]
