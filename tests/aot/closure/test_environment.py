"""What a function closes over: read at each call, and compared where it decides the program."""

import functools
import math
import sys
import types

import optree
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.aot.closure.walk import scan

SCALE = 2.0
OFFSETS = [1.0, 2.0]


def helper(x):
    return x * 2


def calls_helper(x):
    return helper(x)


def uses_globals(x):
    return x * SCALE + OFFSETS[0]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2.0
        self.sizes = [3, 3]

    def forward(self, x):
        x = self.second(torch.relu(self.first(x))) * self.scale + self.shift
        if self.training:
            x = x + sum(self.sizes)
        return x


def compilations(compiled):
    return funcaot.report(compiled).cache_misses


def check(compiled, original, expected, x=None, times=3):
    """Right values, again and again, and that many compilations."""
    x = torch.randn(2, 3) if x is None else x
    for _ in range(times):
        assert_close(compiled(x), original(x))
        inputs = list(original.parameters()) if isinstance(original, nn.Module) else []
        if inputs:
            weights = torch.randn(2, 3)
            ours = torch.autograd.grad(compiled(x), inputs, weights, allow_unused=True)
            theirs = torch.autograd.grad(original(x), inputs, weights, allow_unused=True)
            assert_close(ours, theirs)
    assert compilations(compiled) == expected


@pytest.fixture
def network():
    torch.manual_seed(0)
    module = Network()
    return module, funcaot.compile(module, backend="eager")


def test_train_and_eval(network):
    module, compiled = network
    check(compiled, module, 1)
    module.eval()
    check(compiled, module, 2)
    compiled.train()
    check(compiled, module, 2)
    module.dropout.eval()  # a part of it only
    check(compiled, module, 3)
    module.eval()
    check(compiled, module, 3)


def test_replacing_a_parameter_by_one_that_looks_the_same_needs_no_compilation(network):
    module, compiled = network
    check(compiled, module, 1)
    before = module.first.weight
    module.first.weight = nn.Parameter(torch.randn(3, 3))
    check(compiled, module, 1)
    module.first.weight = before
    check(compiled, module, 1)


def test_replacing_a_parameter_by_one_that_looks_different(network):
    module, compiled = network
    check(compiled, module, 1)
    before = module.first.weight
    module.first.weight = nn.Parameter(torch.randn(3, 3).t())
    check(compiled, module, 2)
    module.first.weight = before
    check(compiled, module, 2)


def test_freezing_a_parameter(network):
    module, compiled = network
    check(compiled, module, 1)
    x = torch.randn(2, 3)
    module.first.weight.requires_grad_(False)
    for _ in range(3):
        (ours,) = torch.autograd.grad(compiled(x).sum(), module.second.weight)
        (theirs,) = torch.autograd.grad(module(x).sum(), module.second.weight)
        assert_close(ours, theirs)
    assert compilations(compiled) == 2
    module.first.weight.requires_grad_(True)
    check(compiled, module, 2)


def test_tying_and_untying_parameters(network):
    module, compiled = network
    check(compiled, module, 1)
    before = module.second.weight
    module.second.weight = module.first.weight
    check(compiled, module, 2)
    module.second.weight = before
    check(compiled, module, 2)
    module.second.weight = module.first.weight
    check(compiled, module, 2)


def test_replacing_a_submodule(network):
    module, compiled = network
    check(compiled, module, 1)
    before = module.second
    module.second = nn.Linear(3, 3)
    check(compiled, module, 2)
    module.second = before
    check(compiled, module, 2)


def test_appending_to_a_sequence():
    module = nn.Sequential(nn.Linear(3, 3))
    compiled = funcaot.compile(module, backend="eager")
    check(compiled, module, 1)
    module.append(nn.ReLU())
    check(compiled, module, 2)
    del module[1]
    check(compiled, module, 2)


def test_removing_a_bias(network):
    module, compiled = network
    check(compiled, module, 1)
    bias = module.first.bias
    module.first.bias = None
    check(compiled, module, 2)
    module.first.bias = bias
    check(compiled, module, 2)


def test_a_hook_added_later_runs(network):
    module, compiled = network
    check(compiled, module, 1)
    handle = module.first.register_forward_hook(lambda module, args, output: output * 3)
    check(compiled, module, 2)
    handle.remove()
    check(compiled, module, 2)


def test_settings_of_a_module(network):
    module, compiled = network
    check(compiled, module, 1)
    module.scale = 3.0
    check(compiled, module, 2)
    module.sizes[0] = 5
    check(compiled, module, 3)
    module.scale, module.sizes = 2.0, [3, 3]
    check(compiled, module, 3)


def test_a_setting_that_no_code_reads_is_not_compared(network):
    module, compiled = network
    for epoch in range(4):
        module.epoch = epoch
        check(compiled, module, 1, times=1)


def test_globals(monkeypatch):
    compiled = funcaot.compile(uses_globals, backend="eager")
    check(compiled, uses_globals, 1)
    monkeypatch.setitem(uses_globals.__globals__, "SCALE", 4.0)
    check(compiled, uses_globals, 2)
    monkeypatch.setitem(OFFSETS.__class__ and uses_globals.__globals__, "OFFSETS", [7.0])
    check(compiled, uses_globals, 3)
    monkeypatch.undo()
    check(compiled, uses_globals, 3)


def test_a_function_that_is_replaced(monkeypatch):
    compiled = funcaot.compile(calls_helper, backend="eager")
    check(compiled, calls_helper, 1)
    monkeypatch.setitem(calls_helper.__globals__, "helper", lambda x: x * 5)
    check(compiled, calls_helper, 2)
    monkeypatch.undo()
    check(compiled, calls_helper, 2)


def test_cells_containers_and_partials():
    weights = {"a": [torch.randn(3)], "b": torch.randn(3)}
    factor = 2.0

    def function(scale, x):
        return x * weights["a"][0] + weights["b"] * factor * scale

    compiled = funcaot.compile(functools.partial(function, 3.0), backend="eager")
    original = functools.partial(function, 3.0)
    check(compiled, original, 1)
    weights["a"][0] = torch.randn(3)
    check(compiled, original, 1)
    weights["b"] = torch.randn(())
    check(compiled, original, 2)
    factor = 5.0
    check(compiled, original, 3)
    factor = 2.0
    check(compiled, original, 3)


def test_a_tensor_that_is_an_argument_and_closed_over():
    held = torch.randn(3)

    def function(x):
        return x * held

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        assert_close(compiled(held), function(held))
    other = torch.randn(3)
    for x in (other, held, other, held, other):
        assert_close(compiled(x), function(x))


def test_a_method_and_its_object():
    class Model:
        def __init__(self, scale):
            self.scale = scale
            self.weight = torch.randn(3)

        @funcaot.compile(backend="eager")
        def run(self, x):
            return x * self.weight * self.scale

    first, second = Model(2.0), Model(3.0)
    x = torch.randn(3)
    for model in (first, second, first, second, first):
        assert_close(model.run(x), x * model.weight * model.scale)
    assert compilations(Model.run) == 2
    first.scale = 7.0
    for _ in range(3):
        assert_close(first.run(x), x * first.weight * 7.0)
    assert compilations(Model.run) == 2  # The second one leaves the number open.


def test_buffers_are_read_anew(network):
    module, compiled = network
    check(compiled, module, 1)
    module.shift = torch.full((3,), 9.0)
    check(compiled, module, 1)
    module.shift.add_(1)
    check(compiled, module, 1)


def forwards(x):
    return compiled_global(x) + forwarding.forwards(x)


class Forwarding:
    """Has a method of the name under which the compiled function is a global."""

    def __init__(self):
        self.weight = torch.ones(3)

    def forwards(self, x):
        return x * self.weight


forwarding = Forwarding()
compiled_global = funcaot.compile(helper, backend="eager")


def test_a_compiled_function_among_the_globals_that_are_named(monkeypatch):
    compiled = funcaot.compile(forwards, backend="eager")
    monkeypatch.setitem(globals(), "forwards", compiled)
    x = torch.randn(3)
    for _ in range(5):
        assert_close(compiled(x), 3 * x)
    assert compilations(compiled) == 1
    assert len(funcaot.report(compiled).entries) == 1


def test_of_a_library_only_what_is_used_is_looked_at():
    """A module reaches thousands of objects, and each one looked at would be compared per call."""

    def function(x):
        assert isinstance(x, torch.Tensor)  # rewritten by pytest to use its own modules
        return optree.tree_map(torch.sin, x) * math.tau

    found = scan((function,))
    assert len(found.objects) < 20
    assert len(found.settings) < 5


def test_what_code_of_a_module_uses_is_looked_at():
    helpers = types.ModuleType("helpers")
    exec("scale = 2\nunused = 3\ndef double(x):\n    return x * scale", vars(helpers))

    def function(x):
        return helpers.double(x)

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2)
    assert_close(compiled(x), 2 * x)
    helpers.scale = 5
    assert_close(compiled(x), 5 * x)
    helpers.unused = 4
    assert_close(compiled(x), 5 * x)
    assert len(compiled.entries) == 2
    helpers.double = lambda x: x + 1
    assert_close(compiled(x), x + 1)


def test_a_module_read_by_name_is_looked_at():
    helpers = types.ModuleType("helpers")
    helpers.scale = 2

    def function(x):
        return x * getattr(helpers, "scale")  # noqa: B009

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2)
    assert_close(compiled(x), 2 * x)
    helpers.scale = 5
    assert_close(compiled(x), 5 * x)


TENSOR = torch.full((2,), 7.0)
CHANGES = {
    "another tensor": (5, TENSOR),
    "of another shape": (5, torch.ones(3, 2)),
    "a tensor that isn't read becomes a number": (6, 3.0),
    "nothing": (7, None),
    "a parameter": (7, torch.nn.Parameter(TENSOR)),
}


@pytest.mark.parametrize("fast", [True, False], ids=["generated path", "general path"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_a_large_container_of_tensors_is_compared_as_one(kind, change, fast):
    held = {index: torch.full((2,), float(index)) for index in range(40)}
    items = held if kind is dict else kind(held.values())

    def function(x):
        return x * items[5] if isinstance(items[6], torch.Tensor) else x + items[6]

    key, value = CHANGES[change]
    with funcaot.config.patch(fast_path=fast):
        compiled = funcaot.compile(function, backend="eager")
        for after in ({}, {}, {key: value}, {key: value}, {}):
            found = {**held, **after}
            if kind is dict:
                items.update(found)
            else:
                items = kind(found.values())
            assert_close(compiled(torch.ones(2)), function(torch.ones(2)))
    checks = funcaot.report(compiled).entries[0].checks
    assert sum("items" in check for check in checks) < 6


@pytest.mark.parametrize("who", ["torch._made_up", "users_library"])
def test_environment_variables_count_where_the_users_code_asks(who, monkeypatch):
    """Torch's machinery asks for some while it traces, which says nothing of the program."""
    module = types.ModuleType(who)
    exec("import os\ndef asks(): return os.getenv('FUNCAOT_MADE_UP')", vars(module))
    monkeypatch.setitem(sys.modules, who, module)

    def function(x):
        return x * 2 if module.asks() else x.sin()

    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(2))
    monkeypatch.setenv("FUNCAOT_MADE_UP", "")
    compiled(torch.ones(2))
    assert compilations(compiled) == (1 if who.startswith("torch.") else 2)


class OfClasses(type):
    """A class of classes with something that their code reads."""

    rates = {"slow": 2.0}


class OfTheirSubclasses(OfClasses):
    """Inherits it."""


def test_what_a_metaclass_inherits_is_compared():
    class Layer(torch.nn.Module, metaclass=OfTheirSubclasses):
        def forward(self, x):
            return x * type(type(self)).rates["slow"]

    layer = Layer()
    compiled = funcaot.compile(lambda x: layer(x), backend="eager")
    for rate, programs in ((2.0, 1), (2.0, 1), (3.0, 2), (3.0, 2)):
        OfClasses.rates["slow"] = rate
        assert compiled(torch.ones(2)).tolist() == [rate, rate]
        assert len(compiled.entries) == programs
    OfClasses.rates["slow"] = 2.0
