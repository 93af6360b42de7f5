"""A tensor that is given alone and inside of wrappers, too, where one of them is written to.

The oracle is the function itself, called with things that hold each other in the same way: values,
versions, histories, which results and parts are which objects and views of which, gradients.
"""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.aot.subclasses.at_random.shared_worlds import Pair
from tests.aot.subclasses.at_random.test_shared_worlds import Told, copies, held
from tests.hostile import COMPILER

WRITES = {
    "alone": lambda x, y, z: y.mul_(2),
    "whole": lambda x, y, z: x.mul_(2),
    "part": lambda x, y, z: x.a.add_(z.b),
    "part and alone": lambda x, y, z: (x.a.mul_(2), y.add_(1)),
    "row": lambda x, y, z: x.a[0].add_(1),
    "row alone": lambda x, y, z: y[:1].mul_(3),
    "itself": lambda x, y, z: y.copy_(x.b),
    "both": lambda x, y, z: (z.mul_(2), x.add_(1), y.sub_(1)),
    "set": lambda x, y, z: z.__setitem__(0, 3.0),
}
RESULTS = {
    "values": lambda x, y, z: (x * 2, y * 3, z.sin()),
    "themselves": lambda x, y, z: (x, y, z, x.a, z.a),
    "views": lambda x, y, z: (y[0], x.t(), z[1:]),
    "told apart": lambda x, y, z: (x * (2 if x.a is y else 5), y * (z.a is x.a)),
    "part": lambda x, y, z: (x.a * y, z.a),
}
HISTORIES = ("none", "alone is a leaf", "alone is a result", "wrapper is a leaf", "no grad")


def numbers(seed):
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))


def given(how, history, call):
    """Two wrappers, what they hold, and the leaf of that."""
    y = Pair(numbers(call), numbers(call + 9)) if how == "nested" else numbers(call)
    leaf = y
    if "alone" in history:
        y.requires_grad_()
    if history == "alone is a result":
        y = y * 1
    x = Pair(y, y if how == "twice" else numbers(call + 1))
    z = Pair(y, numbers(call + 2)) if how == "two" else Pair(numbers(call + 3), numbers(call + 4))
    if history == "wrapper is a leaf":
        x.requires_grad_()
    return x, y, z, leaf


def played(function, how, history, call):
    x, y, z, leaf = given(how, history, call)
    told = Told()
    told.counted |= set(map(id, held([x, y, z])))  # nobody counts those of new results
    before = [told(value) for value in (x, y, z)]
    try:
        with torch.set_grad_enabled(history != "no grad"):
            results = function(x, y, z)
    except RuntimeError as error:
        return "raised", type(error), copies([x, y, z])
    after = [told(value) for value in (x, y, z, *results)]
    found = copies([x, y, z, *results])
    outputs = [each for each in results if each.requires_grad and each.grad_fn is not None]
    wanted = [each for each in (x, leaf) if each.requires_grad]
    if outputs and wanted:
        ones = [torch.ones_like(each) for each in outputs]
        gradients = torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
        after += [told(each)[:5] for each in gradients if each is not None]
        found += copies(gradients)
    with torch.no_grad():
        y.mul_(1.5)
    return before, after, [*found, *copies([x, y, z, *results])]


def compared(how, write, result, backend, histories=HISTORIES):
    def function(x, y, z):
        WRITES[write](x, y, z)
        return RESULTS[result](x, y, z)

    compiled = funcaot.compile(function, backend=backend)
    for call, history in enumerate(histories):
        for again in range(2):
            found, wanted = (
                played(each, how, history, 10 * call + again) for each in (compiled, function)
            )
            assert found[:2] == wanted[:2], (how, write, result, history)
            assert_close(found[2], wanted[2])


@pytest.mark.parametrize("result", ["values", "themselves", "views"])
@pytest.mark.parametrize("write", ["part", "both"])
def test_as_in_eager(write, result):
    compared("two", write, result, COMPILER)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("result", list(RESULTS))
@pytest.mark.parametrize("write", list(WRITES))
@pytest.mark.parametrize("how", ["one", "two", "twice", "nested"])
def test_every_way(how, write, result):
    compared(how, write, result, COMPILER)


@pytest.mark.parametrize(("write", "result"), [("alone", "values"), ("both", "themselves")])
def test_on_the_default_backend(write, result):
    compared("two", write, result, "inductor", ("none", "alone is a result", "none"))


@pytest.mark.parametrize("inside", ["wrapper", "alone"])
@pytest.mark.parametrize("write", ["alone", "part", "whole"])
def test_closed_over(write, inside):
    """One of the two is met while the function runs."""
    held_by = {}

    def function(value, z):
        x, y = (held_by["x"], value) if inside == "wrapper" else (value, held_by["y"])
        WRITES[write](x, y, z)
        return RESULTS["values"](x, y, z)

    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        found = []
        for each in (compiled, function):
            x, y, z, _ = given("one", "none", call)
            held_by.update(x=x, y=y)
            results = each(y if inside == "wrapper" else x, z)
            versions = [value._version for value in (x, y, z, x.b)]
            found.append((versions, x.a is y, copies([x, y, z, *results])))
        assert found[0][:2] == found[1][:2]
        assert_close(found[0][2], found[1][2])


def test_held_in_one_call_and_not_in_the_next():
    def function(x, y):
        y.mul_(2)
        return x * 3

    compiled = funcaot.compile(function, backend=COMPILER)
    for together in (False, True, False, True):
        found = []
        for each in (compiled, function):
            y = numbers(0)
            x = Pair(y if together else y.clone(), numbers(1))
            found.append(copies([each(x, y), x, y]))
        assert_close(*found)
    assert len(compiled.entries) == 2


def test_a_backward_sees_that_what_it_saved_was_written_to():
    compiled = funcaot.compile(lambda x, y: y.mul_(2), backend=COMPILER)
    for function in (compiled, compiled, compiled.function):
        y = numbers(0)
        x = Pair(Pair(y, numbers(1)), numbers(2))
        square = (w := y.requires_grad_()) * y
        with torch.no_grad():
            function(x, w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            square.sum().backward()
