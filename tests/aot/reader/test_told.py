"""A recompilation says what of the surroundings was what and is now what."""

import sys
import types

import pytest
import torch

import funcaot

X = torch.ones(4)
SOURCE = """
import torch

G, MODE, NAME = 3, None, "x"
W = torch.ones(4)
CONF, LIST, DEEP = {"scale": 2.0, "one": 1}, [1, 2], {"key": [torch.ones(4)]}
ACT = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4))


class Options:
    def __init__(self):
        self.k = 1


O = Options()


def helper(x):
    return x


def function(x):
    y = x * G + W * CONF["scale"] + len(LIST) + (NAME == "x")
    y = y * 2 if MODE else y
    return ACT(helper(y)) * O.k + DEEP["key"][0]
"""


def other(x):
    return x + 1


def hooked(world):
    world.ACT[0].register_forward_hook(lambda module, inputs, output: output * 2)


CHANGES = {
    "a number": (lambda w: setattr(w, "G", 4), "G was 3 and is now 4"),
    "its class": (lambda w: setattr(w, "G", 3.0), "G was 3 and is now 3.0"),
    "a number for a tensor": (lambda w: setattr(w, "W", 2.0), "W was a tensor and is now a float"),
    "a tensor for a number": (lambda w: setattr(w, "G", X), "G was 3 and is now a tensor"),
    "a string": (lambda w: setattr(w, "NAME", "y"), "NAME was 'x' and is now 'y'"),
    "none": (lambda w: setattr(w, "MODE", "fast"), "MODE was None and is now 'fast'"),
    "a shape": (
        lambda w: setattr(w, "W", torch.ones(1)),
        "the shape of W was [4] and is now [1]",
    ),
    "a dtype": (
        lambda w: setattr(w, "W", INTEGERS),
        "the dtype of W was torch.float32 and is now torch.int32",
    ),
    "an item": (
        lambda w: w.CONF.update(scale=3.0),
        "CONF was {'scale': 2.0, 'one': 1} and is now {'scale': 3.0, 'one': 1}",
    ),
    "a length": (lambda w: w.LIST.append(3), "LIST was [1, 2] and is now [1, 2, 3]"),
    "a length of tensors": (
        lambda w: w.DEEP["key"].append(1),
        "DEEP['key'] was a list of 1 and is now one of 2",
    ),
    "another container": (
        lambda w: w.DEEP.update(key=(torch.ones(4),)),
        "DEEP['key'] was a list and is now a tuple",
    ),
    "the same again": (lambda w: w.DEEP.update(key=w.DEEP.pop("key")), None),
    "an attribute": (lambda w: setattr(w.O, "k", 5), "O.k was 1 and is now 5"),
    "an object like it": (lambda w: setattr(w, "O", w.Options()), None),
    "an object": (
        lambda w: setattr(w, "O", type("Other", (w.Options,), {})()),
        "O was a Options and is now a Other",
    ),
    "a mode": (lambda w: w.ACT.eval(), "ACT was in training mode and is now in evaluation mode"),
    "a hook": (hooked, "ACT.0 has other hooks or parts than before"),
    "a layer": (
        lambda w: w.ACT.__setitem__(0, torch.nn.Tanh()),
        "ACT.0 was a ReLU and is now a Tanh",
    ),
    "a parameter": (
        lambda w: w.ACT[1].weight.requires_grad_(False),
        "the requires_grad of ACT.1.weight was True and is now False",
    ),
    "a function": (
        lambda w: setattr(w, "helper", other),
        "helper is another function than before: other",
    ),
}
INTEGERS = torch.ones(4, dtype=torch.int32)


@pytest.fixture
def world(monkeypatch):
    module = types.ModuleType("world_of_told")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(SOURCE, vars(module))
    return module


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_and_what_is_now(world, change):
    make, wanted = CHANGES[change]
    compiled = funcaot.compile(world.function, backend="eager")
    for _ in range(2):
        compiled(X)
    make(world)
    expected = world.function(X)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), expected)
    if wanted is None:  # the same things in the same order
        assert len(funcaot.report(compiled).entries) == 1
        return
    first, second = funcaot.report(compiled).entries
    assert first.reason == ""
    assert second.reason == wanted


def test_what_is_gone_is_named(world):
    compiled = funcaot.compile(world.function, backend="eager")
    compiled(X)
    del world.O.k
    world.Options.k = 7
    torch.testing.assert_close(compiled(X), world.function(X))
    assert funcaot.report(compiled).entries[-1].reason == "O.k is gone"


def test_the_warning_names_what_changes(world):
    compiled = funcaot.compile(world.function, backend="eager")
    with funcaot.config.patch(recompile_warning=2, open_numbers=False):
        for number in (3, 4):
            world.G = number
            compiled(X)
        world.G = 5
        with pytest.warns(funcaot.errors.RecompileWarning, match="G was 4 and is now 5") as seen:
            compiled(X)
    assert seen[0].filename == __file__


def test_values_whose_text_raises_or_is_long(world):
    class Odd(int):
        def __repr__(self):
            raise RuntimeError("no text")

    world.LIST[:] = range(100)
    compiled = funcaot.compile(world.function, backend="eager")
    compiled(X)
    world.LIST.append(Odd(1))
    compiled(X)
    reason = funcaot.report(compiled).entries[-1].reason
    assert reason.startswith("LIST was [0, 1, 2")
    assert len(reason) < 200


class Options:
    def __init__(self):
        self.scale, self.shift = 2.0, torch.ones(4)


def test_attributes_of_arguments_have_the_arguments_name():
    def function(x, options):
        return x * options.scale + options.shift

    compiled, options = funcaot.compile(function, backend="eager"), Options()
    compiled(X, options)
    for change, wanted in (
        ({"scale": 3.0}, "options.scale was 2.0 and is now 3.0"),
        ({"shift": torch.ones(1)}, "the shape of options.shift was [4] and is now [1]"),
    ):
        vars(options).update(change)
        torch.testing.assert_close(compiled(X, options), function(X, options))
        assert funcaot.report(compiled).entries[-1].reason == wanted
    other, known = Options(), len(funcaot.report(compiled).entries)
    torch.testing.assert_close(compiled(X, other), function(X, other))
    assert len(funcaot.report(compiled).entries) == known


def test_arguments_that_are_added_say_so_once():
    def function(x, *rest, key=None):
        return x + sum(rest)

    compiled = funcaot.compile(function, backend="eager")
    compiled(X), compiled(X, 2 * X), compiled(X, key={"a": X})
    reasons = [entry.reason for entry in funcaot.report(compiled).entries]
    assert reasons[1] == "the structure of the arguments was (.) and is now (., .)"
    assert reasons[2] == "the structure of the arguments was (., .) and is now (., key={'a': .})"


def test_a_shape_beside_a_gradient():
    """Tensors that are read off others' ``.grad`` have no name of their own."""
    held = types.SimpleNamespace(w=torch.ones(3, requires_grad=True), table=torch.ones(3, 2))
    held.w.grad = torch.zeros(3)

    def accumulate(x):
        (held.w * x).sum().backward()
        return held.table * 1

    compiled = funcaot.compile(accumulate, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    held.table = torch.ones(5, 2)
    compiled(torch.ones(3))
    reason = compiled.entries[-1].reason
    assert reason == "the shape of held.table was [3, 2] and is now [5, 2]"


BESIDE_SIZES = ["a number", "a string", "an attribute", "a mode", "a parameter", "a function"]


def test_what_changed_is_named_beside_sizes_that_are_open(world):
    """An entry that serves the call but for one thing says more than the others."""
    compiled = funcaot.compile(world.function, backend="eager")
    for size in (2, 3):
        compiled(torch.ones(size, 4))
    for size, change in enumerate(BESIDE_SIZES, 5):
        make, wanted = CHANGES[change]
        make(world)
        x = torch.ones(size, 4)
        torch.testing.assert_close(compiled(x), world.function(x))
        assert compiled.entries[-1].reason == wanted


def test_sizes_are_named_with_what_else_changed(world):
    compiled = funcaot.compile(world.function, backend="eager")
    compiled(torch.ones(2, 4))
    world.ACT[1].weight.requires_grad_(False)
    compiled(torch.ones(3, 4))
    shape, frozen = compiled.entries[-1].reason.split("; ")
    assert shape == "the shape of x was [2, 4] and is now [3, 4]"
    assert frozen == "the requires_grad of ACT.1.weight was True and is now False"


def test_strides_of_open_sizes_are_named():
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    for size in (2, 3):
        compiled(torch.ones(size, 4))
    compiled(torch.ones(4, 5).t())
    assert compiled.entries[-1].reason == "the stride of x was [4, 1] and is now [1, 5]"
    compiled(torch.ones(1, 4))
    assert "the shape of x was" in compiled.entries[-1].reason


def test_what_is_asked_of_a_number_is_written_as_the_users_code():
    class Held:
        def __init__(self):
            self.count = 0

    held = Held()

    def function(x):
        y = x * 2 if held.count % 2 else x
        held.count += 1
        return y * held.extra if hasattr(held, "extra") else y

    compiled = funcaot.compile(function, backend="eager")
    for count in range(3):
        torch.testing.assert_close(compiled(X), X * (1 + count % 2))
    reason = compiled.entries[-1].reason
    assert reason == "no longer so: bool((held.count % 2)), where held.count is 2"
    held.extra = 3.0
    compiled(X)
    assert compiled.entries[-1].reason == "held.extra is there now, which it wasn't"


def test_a_call_is_compared_with_the_latest_of_its_structure():
    compiled = funcaot.compile(lambda x, kind="a", *, key=None: x * len(kind), backend="eager")
    compiled(X), compiled(X, key="one"), compiled(X), compiled(X, "b")
    compiled(X, key="two")
    assert compiled.entries[-1].reason == "key was 'one' and is now 'two'"


def test_the_gradient_that_came_has_a_name():
    net = torch.nn.Linear(2, 2)

    def function(x):
        net(x).sum().backward()

    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(3, 2)), compiled(torch.ones(3, 2))
    assert compiled.entries[-1].reason == "net.weight.grad was None and is now a tensor"
    net.weight.grad = None
    net.bias.requires_grad_(False)
    compiled(torch.ones(3, 2))
    assert compiled.entries[-1].reason.startswith("the requires_grad of net.bias was True")


def test_the_warning_tells_of_no_size_that_is_open(world):
    compiled = funcaot.compile(world.function, backend="eager")
    with funcaot.config.patch(recompile_warning=3):
        for size, name in enumerate(("x", "x", "y"), 2):
            world.NAME = name
            compiled(torch.ones(size, 4))
        world.NAME = "z"
        match = "What changed this time: NAME was 'y' and is now 'z'"
        with pytest.warns(funcaot.errors.RecompileWarning, match=match):
            compiled(torch.ones(9, 4))
