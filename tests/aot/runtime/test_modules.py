"""A compiled module is still a module."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import funcaot
from funcaot.errors import UnsupportedError


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 2)

    def forward(self, x, *, scale=1.0):
        return self.second(torch.relu(self.norm(self.first(x)))) * scale


def both(backend="eager"):
    network = Network()
    twin = copy.deepcopy(network)
    return network, twin, funcaot.compile(twin, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_training_with_buffers_equals_eager(backend):
    network, _, compiled = both(backend)
    for _ in range(3):
        x = torch.randn(5, 4)
        for module in (network, compiled):
            module.zero_grad()
            module(x, scale=2.0).square().sum().backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.01 * parameter.grad
        for ours, theirs in zip(compiled.parameters(), network.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad)
        for ours, theirs in zip(compiled.buffers(), network.buffers(), strict=True):
            assert_close(ours, theirs)
    assert len(funcaot.report(compiled).entries) == 1


def test_it_is_an_instance_of_the_module_and_shares_its_state():
    _, twin, compiled = both()
    assert isinstance(compiled, Network)
    assert list(compiled.state_dict()) == list(twin.state_dict())
    assert compiled.first.weight is twin.first.weight
    compiled.load_state_dict(Network().state_dict())
    assert_close(compiled.first.weight, twin.first.weight)


def test_train_and_eval():
    network, _, compiled = both()
    x = torch.randn(5, 4)
    network(x), compiled(x)
    assert_close(compiled.eval()(x), network.eval()(x))
    assert_close(compiled.train()(x), network.train()(x))
    assert_close(compiled.eval()(x), network.eval()(x))
    assert len(funcaot.report(compiled).entries) == 2


def test_to_another_dtype():
    network, _, compiled = both()
    x = torch.randn(5, 4)
    network(x), compiled(x)
    network.double(), compiled.double()
    assert_close(compiled(x.double()), network(x.double()))


def test_a_replaced_parameter_and_a_replaced_submodule_are_seen():
    network, _, compiled = both()
    x = torch.randn(5, 4)
    network(x), compiled(x)
    weight = torch.randn(2, 8)
    network.second.weight = nn.Parameter(weight.clone())
    compiled.second.weight = nn.Parameter(weight.clone())
    assert_close(compiled(x), network(x))
    network.norm, compiled.norm = nn.Identity(), nn.Identity()
    assert_close(compiled(x), network(x))


def test_hooks_of_the_module_run():
    network, _, compiled = both()
    for module in (network, compiled):
        module.second.register_forward_hook(lambda module, args, output: output * 3)
    x = torch.randn(5, 4)
    assert_close(compiled(x), network(x))


@pytest.mark.parametrize("where", ["submodule", "whole"])
def test_full_backward_hooks_change_gradients(where):
    network, _, compiled = both()
    for module in (network, compiled):
        hooked = module.second if where == "submodule" else module
        hooked.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
        hooked.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
    x, y = (torch.randn(5, 4, requires_grad=True) for _ in range(2))
    y.data.copy_(x.data)
    network(x).square().sum().backward()
    compiled(y).square().sum().backward()
    assert_close(y.grad, x.grad)
    for ours, theirs in zip(compiled.parameters(), network.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)


def test_hooks_added_and_removed_later_are_seen():
    network, _, compiled = both()
    x = torch.randn(5, 4)
    network.eval(), compiled.eval()
    assert_close(compiled(x), network(x))
    hook = compiled.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    assert_close(compiled(x), network(x * 2))
    hook.remove()
    assert_close(compiled(x), network(x))


def test_a_shallow_copy_has_attributes_of_its_own():
    _, twin, compiled = both()
    compiled.eval()
    x = torch.randn(5, 4)
    other = copy.copy(compiled)
    assert_close(other(x), compiled(x))
    assert other.first is twin.first
    other.note = 1
    assert not hasattr(twin, "note")


def test_compiled_parts_of_a_module():
    parts = [nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)]
    eager = nn.Sequential(*parts)
    mixed = nn.Sequential(funcaot.compile(parts[0], backend="eager"), *parts[1:])
    x = torch.randn(2, 3)
    assert_close(mixed(x), eager(x))
    assert list(mixed.state_dict()) == list(eager.state_dict())
    assert_close(funcaot.compile(mixed, backend="eager")(x), eager(x))
    mixed[0].append = None  # an attribute like any other
    assert parts[0].append is None


def test_a_child_added_later_is_seen():
    compiled = funcaot.compile(nn.Sequential(nn.Linear(3, 3)), backend="eager")
    x = torch.randn(2, 3)
    before = compiled(x)
    compiled.append(nn.Tanh())
    assert_close(compiled(x), before.tanh())
    assert len(compiled) == 2
    assert [type(child) for child in compiled] == [nn.Linear, nn.Tanh]


def test_saved_and_loaded_as_a_whole(tmp_path):
    _, _, compiled = both()
    torch.save(compiled, tmp_path / "module.pt")
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    x = torch.randn(5, 4)
    assert_close(loaded.eval()(x), compiled.eval()(x))


def test_functional_call_and_averaging():
    network, _, compiled = both()
    network.eval(), compiled.eval()
    x = torch.randn(5, 4)
    doubled = {name: 2 * value.detach() for name, value in network.named_parameters()}

    def loss(module, parameters):
        return torch.func.functional_call(module, parameters, (x,)).square().sum()

    ours, theirs = (torch.func.grad(loss, 1)(m, doubled) for m in (compiled, network))
    assert_close(ours, theirs)
    averaged = torch.optim.swa_utils.AveragedModel(compiled)
    averaged.update_parameters(compiled)
    assert_close(averaged(x), compiled(x))


def test_parametrized_before_it_is_compiled():
    eager = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    twin = copy.deepcopy(eager)
    compiled = funcaot.compile(twin, backend="eager")
    x = torch.randn(2, 3)
    for module in (eager, compiled):
        module(x).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)


def test_parametrizing_a_compiled_module_is_refused():
    linear = nn.Linear(3, 3)
    compiled = funcaot.compile(linear, backend="eager")
    with pytest.raises(UnsupportedError, match="parametrize the module first"):
        nn.utils.parametrizations.weight_norm(compiled)


def test_deepcopy_and_pickle_compile_again():
    network, _, compiled = both()
    x = torch.randn(5, 4)
    network(x), compiled(x)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert funcaot.report(other).entries == ()
        assert other.first.weight is not compiled.first.weight
        assert_close(other.eval()(x), network.eval()(x))
        network.train()


def test_a_function_that_closes_over_a_module():
    network, twin, _ = both()

    @funcaot.compile(backend="eager")
    def loss(x):
        return twin(x).square().mean()

    x = torch.randn(5, 4)
    loss(x).backward()
    network(x).square().mean().backward()
    for ours, theirs in zip(twin.parameters(), network.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)
    twin.eval(), network.eval()
    assert_close(loss(x), network(x).square().mean())


def test_a_decorated_method():
    class Model:
        def __init__(self, weight):
            self.weight = weight

        @funcaot.compile(backend="eager")
        def energy(self, x):
            return (self.weight * x).sum()

    first, second = Model(torch.tensor(2.0)), Model(torch.tensor(5.0))
    x = torch.ones(3)
    for model in (first, second, first):
        assert_close(model.energy(x), model.weight * 3)


def test_shared_parameters_get_one_gradient():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    eager = Tied()
    twin = copy.deepcopy(eager)
    x = torch.randn(2, 3)
    eager(x).sum().backward()
    funcaot.compile(twin, backend="eager")(x).sum().backward()
    assert_close(twin.a.weight.grad, eager.a.weight.grad)


def test_buffers_updated_in_place():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("average", torch.zeros(4))
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            self.count += 1
            self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            return y + self.average / self.count

    eager = Running()
    compiled = funcaot.compile(copy.deepcopy(eager), backend="eager")
    for _ in range(3):
        x = torch.randn(5, 4)
        assert_close(compiled(x), eager(x))
        assert_close(compiled.count, eager.count)
        assert_close(compiled.average, eager.average)
    assert len(funcaot.report(compiled).entries) == 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_train(kind):
    eager = kind(4, 5, 2, batch_first=True)
    compiled = funcaot.compile(copy.deepcopy(eager), backend="eager")
    x = torch.randn(3, 6, 4)
    for module in (eager, compiled):
        module(x)[0].square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)


def test_many_buffers_get_their_values_and_versions_as_in_eager():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            pair = torch.zeros(2, 4)
            self.register_buffer("first", pair[0])
            self.register_buffer("second", pair[1])

        def forward(self, x):
            y = self.norm(x)
            self.steps += 1
            self.first.add_(y.detach().mean(0)).mul_(0.5)
            self.second.copy_(y.detach()[0])
            return y * self.steps

    eager = Counting()
    compiled = funcaot.compile(Counting(), backend="eager")
    for _ in range(4):
        x = torch.randn(5, 4)
        before = [[value._version for value in module.buffers()] for module in (eager, compiled)]
        assert_close(compiled(x), eager(x))
        counted = [
            [value._version - old for value, old in zip(module.buffers(), versions, strict=True)]
            for module, versions in zip((eager, compiled), before, strict=True)
        ]
        assert counted[1] == counted[0]
        for ours, theirs in zip(compiled.buffers(), eager.buffers(), strict=True):
            assert_close(ours, theirs)


def test_what_is_compiled_already_can_be_compiled_again():
    module = Network()
    once = funcaot.compile(module, backend="eager")
    twice = funcaot.compile(once, backend="eager", dynamic=False)
    x = torch.randn(5, 4)
    for compiled in (twice, funcaot.compile(twice, backend="eager")):
        assert_close(compiled(x), copy.deepcopy(module)(x))
        assert isinstance(compiled, Network)
        assert copy.deepcopy(compiled)(x).shape == (5, 2)
        assert len(funcaot.report(compiled).entries) == 1
    assert not funcaot.report(once).entries


def test_a_counter_of_operations_tells_modules_apart():
    """It looks at them by hooks for all modules, and saw a graph in their place."""
    x = torch.ones(2, 3)
    counts = []
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    compiled = funcaot.compile(layers, backend="eager")
    warm = compiled(x)
    for called in (layers, compiled):
        with FlopCounterMode(display=False) as counter:
            called(x).sum().backward()
        counts.append(counter.get_flop_counts())
    assert counts[0] == counts[1]
    with FlopCounterMode(display=False) as counter:
        warm.sum().backward()
    assert [*counter.get_flop_counts()] == ["Global"]
