"""Attributes and hooks of tensors: read, looked for, set and deleted in a compiled function."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


def tripled(gradient):
    return gradient * 3


def doubled(parameter):
    parameter.grad.mul_(2)


def sets(x):
    x.tag = "seen"
    return x * 2


def sets_a_dictionary(x):
    x.__dict__["tag"] = 7
    return x * 2


def deletes(x):
    del x.scale
    return x * 2


def reads(x):
    return x * x.scale


def reads_with_default(x):
    return x * getattr(x, "factor", 5.0)


def asks(x):
    return x * 2 if hasattr(x, "factor") else x * 3


def counts(x):
    x.count = getattr(x, "count", 0) + 1
    return x * x.count


def marks_a_result(x):
    y = x * 2
    y.origin = "here"
    return y, x


def hooks(x):
    x.register_hook(tripled)
    return x * 2


def hooks_for_a_while(x):
    handle = x.register_hook(tripled)
    y = x * 2
    handle.remove()
    return y


def hooks_after(x):
    x.register_post_accumulate_grad_hook(doubled)
    return x * 2


def hooks_by_a_closure(x):
    factor = 4.0
    x.register_hook(lambda gradient: gradient * factor)
    return x * 2


def asks_for_a_dtype(x):
    x.grad_dtype = torch.float64
    return x * 2


FUNCTIONS = [
    sets,
    sets_a_dictionary,
    deletes,
    reads,
    reads_with_default,
    asks,
    counts,
    marks_a_result,
    hooks,
    hooks_for_a_while,
    hooks_after,
    hooks_by_a_closure,
    asks_for_a_dtype,
]
CHANGES = {
    "as before": lambda x: None,
    "another scale": lambda x: setattr(x, "scale", 4.0),
    "of another type": lambda x: setattr(x, "scale", 2),
    "a factor too": lambda x: setattr(x, "factor", 0.25),
    "an object too": lambda x: setattr(x, "owner", tripled),
}


def run(function, change, *, again):
    """What can be seen after a call of a function and a backward through more than its result."""
    seen = []
    for step in range(4):
        x = torch.linspace(1, 2, 3).requires_grad_()
        x.scale = 2.0
        if step in (1, 3):
            change(x)
        for _ in range(2 if again else 1):
            if not hasattr(x, "scale"):
                x.scale = 2.0
            results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        (sum(result.sum() for result in results) + (x * 10).sum()).backward()
        attributes = dict(vars(x))
        origins = [getattr(result, "origin", None) for result in results]
        values = [result.tolist() for result in results]
        hooked = [len(x._backward_hooks or ()), len(x._post_accumulate_grad_hooks or ())]
        seen.append((values, x.grad.tolist(), x.grad_dtype, attributes, origins, hooked))
    return seen


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("fast", [False, True])
def test_attributes_of_an_argument(function, name, fast):
    again = fast or name == "as before"
    compiled = funcaot.compile(function, backend="eager")
    with funcaot.config.patch(fast_path=fast):
        expected = run(function, CHANGES[name], again=again)
        assert run(compiled, CHANGES[name], again=again) == expected
    assert len(funcaot.report(compiled).entries) <= 4


def test_attributes_are_compared_with_open_sizes():
    compiled = funcaot.compile(reads, backend="eager", dynamic=True)
    for size in (3, 4, 5):
        for scale in (2.0, 3.0):
            x = torch.ones(size)
            x.scale = scale
            assert compiled(x).tolist() == [scale] * size
    assert len(funcaot.report(compiled).entries) == 2


def test_what_differs_is_named():
    compiled = funcaot.compile(reads, backend="eager")
    for scale in (2.0, 3.0):
        x = torch.ones(2)
        x.scale = scale
        compiled(x)
    assert "attributes of tensors" in funcaot.report(compiled).entries[1].reason


def keeps_a_tensor(x):
    x.half = x / 2
    return x * 2


def keeps_a_tensor_in_a_hook(x):
    y = x * 2
    x.register_hook(lambda gradient: gradient * y)
    return y


@pytest.mark.parametrize("function", [keeps_a_tensor, keeps_a_tensor_in_a_hook])
def test_tensors_of_the_capture_are_refused(function):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(UnsupportedError, match=f"{function.__name__} keeps a tensor"):
        funcaot.compile(function, backend="eager")(x)
    assert not vars(x)
    assert not x._backward_hooks


def test_what_cannot_be_compared_is_refused_where_it_is_read():
    x = torch.ones(2)
    x.scale, x.parts = 2.0, [1, 2]
    assert funcaot.compile(reads, backend="eager")(x).tolist() == [2.0, 2.0]
    with pytest.raises(UnsupportedError, match="reads the attribute 'parts'"):
        funcaot.compile(lambda x: x * x.parts[0], backend="eager")(x)


def test_an_attribute_that_is_not_there_is_eagers_error():
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nothing'"):
        funcaot.compile(lambda x: x * x.nothing, backend="eager")(torch.ones(2))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.weight.scale = 2.0

    def forward(self, x):
        return x * self.weight * getattr(self.weight, "scale", 1.0)


def test_attributes_of_a_parameter():
    layer, x = Layer(), torch.ones(3)
    compiled = funcaot.compile(layer, backend="eager")
    for value in (2.0, 3.0, None, 5.0):
        if value is None:
            del layer.weight.scale
        else:
            layer.weight.scale = value
        for _ in range(2):
            assert torch.equal(compiled(x), layer(x))


class Marking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.weight.calls = getattr(self.weight, "calls", 0) + 1
        self.weight.register_hook(tripled)
        return x * self.weight


def test_what_is_left_on_a_parameter():
    seen = []
    for make in (lambda layer: layer, lambda layer: funcaot.compile(layer, backend="eager")):
        layer = Marking()
        called = make(layer)
        for _ in range(3):
            layer.weight.grad = None
            called(torch.ones(3)).sum().backward()
        weight = layer.weight
        seen.append((weight.calls, len(weight._backward_hooks), weight.grad.tolist()))
    assert seen[0] == seen[1]


OLD = ["old"]


class Note:
    """Something that a function makes."""


def noted(x):
    tags = ["a", ("b", {"c": ["d"]})]
    y, z = x * 2, x * 3
    y.tags, z.tags, x.tags, y.old = tags, tags, {1}, OLD
    return y, z


def test_containers_are_new_in_each_call():
    """The first call's list was that of all calls; what was there before stays one object."""
    compiled = funcaot.compile(noted, backend="eager")
    calls = []
    for _ in range(3):
        x = torch.ones(2)
        y, z = compiled(x)
        assert y.tags is z.tags and y.tags == ["a", ("b", {"c": ["d"]})]
        assert x.tags == {1} and y.old is OLD
        calls.append((y.tags, y.tags[1][1], y.tags[1][1]["c"], x.tags))
    assert all(len(set(map(id, parts))) == 3 for parts in zip(*calls, strict=True))


def test_objects_of_arguments_are_passed_on():
    """The signature compares which ones they are."""

    def function(x):
        (y := x * 2).note = x.note
        return y

    compiled = funcaot.compile(function, backend="eager")
    notes = [Note(), Note()]
    for note in (*notes, *notes):
        (x := torch.ones(2)).note = note
        assert compiled(x).note is note


@pytest.mark.parametrize("made", [lambda: Note(), lambda: [Note()], lambda: [OLD]])
def test_what_can_not_be_made_anew_is_refused(made):
    def function(x):
        (y := x * 2).note = made()
        return y

    with pytest.raises(UnsupportedError, match="sets the attribute 'note' of a tensor"):
        funcaot.compile(function, backend="eager")(torch.ones(2))
