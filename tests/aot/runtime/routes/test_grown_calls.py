"""Tensors that a function reaches, and whose sizes change, stay open; eager says what is right."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")


class Box:
    pass


class Memory(nn.Module):
    """Attends to what it has seen; ``where`` it keeps that."""

    def __init__(self, where):
        super().__init__()
        self.inner, self.where = nn.Linear(3, 3), where
        self.register_buffer("buffer", torch.ones(2, 3))
        self.attribute = [torch.ones(2, 3)]
        self.box = Box()
        self.box.layers = {"a": [torch.ones(2, 3), torch.ones(2, 3)]}

    def kept(self):
        return {
            "buffer": lambda: [self.buffer],
            "list": lambda: self.attribute,
            "object": lambda: self.box.layers["a"],
        }[self.where]()

    def forward(self, x, box):
        y = self.inner(x)
        if self.where == "buffer":
            self.buffer = torch.cat([self.buffer, y.detach()])
        elif self.where == "list":
            self.attribute[0] = torch.cat([self.attribute[0], y])
        elif self.where == "object":
            layer = self.box.layers["a"]
            for at in range(2):
                layer[at] = torch.cat([layer[at], y.detach() * at])
        else:
            before = box.keys
            box.keys = torch.cat([box.keys, y.detach()])
            assert before is not box.keys
            assert box.keys is not x
        found = [box.keys] if self.where == "argument" else self.kept()
        return sum(((y @ each.T).softmax(-1) @ each).sum() for each in found)


def agree(where, calls, **options):
    """The numbers of programs after each call, each of which is compared with eager."""
    models, boxes, counts = [], [], []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Memory(where).double())
        boxes.append(Box())
        boxes[-1].keys = torch.ones(2, 3).double()
    functions = models[0], funcaot.compile(models[1], **options)
    for number in range(calls):
        torch.manual_seed(number)
        x = torch.randn(1, 3).double()
        found = []
        for function, model, box in zip(functions, models, boxes, strict=True):
            model.zero_grad()
            value = function(x, box)
            value.backward(retain_graph=True)
            kept = [box.keys] if where == "argument" else model.kept()
            found.append((value, model.inner.weight.grad, *kept))
        assert_close(found[1], found[0])
        counts.append(funcaot.report(functions[1]).cache_misses)
    return counts


WHERE = ("buffer", "list", "object", "argument")


@pytest.mark.parametrize("where", WHERE)
def test_two_programs_serve_all_sizes(where):
    assert agree(where, 6, backend="eager") == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("where", WHERE[2:])
def test_on_a_hostile_compiler(where):
    agree(where, 4, backend=COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_on_inductor(where):
    assert agree(where, 5, backend="inductor")[-1] == 2


@pytest.mark.parametrize("where", WHERE[:1])
def test_nothing_is_open_if_that_is_asked_for(where):
    assert agree(where, 3, backend="eager", dynamic=False) == [1, 2, 3]


def test_what_is_static_stays_so():
    box = Box()
    compiled = funcaot.compile(lambda x, n: (box.keys * x).sum() * n, backend="eager")
    funcaot.mark_static(compiled, "n")
    for size in (2, 3, 4):
        box.keys = torch.randn(size, 2)
        assert_close(compiled(torch.ones(2), size), box.keys.sum() * size)
    assert funcaot.report(compiled).cache_misses == 3


def test_an_error_of_the_user_is_raised_and_the_next_call_is_right():
    def function(x, box, limit):
        if box.keys.shape[0] > limit:
            raise ValueError("full")
        box.keys = torch.cat([box.keys, x])
        return box.keys.sum()

    compiled, boxes = funcaot.compile(function, backend="eager"), (Box(), Box())
    for box in boxes:
        box.keys = torch.ones(2, 3)
    for limit in (9, 9, 9, 3, 9, 9):
        x = torch.randn(1, 3)
        if limit == 3:
            with pytest.raises(ValueError, match="full"):
                compiled(x, boxes[1], limit)
            continue
        assert_close(compiled(x, boxes[1], limit), function(x, boxes[0], limit))
        assert_close(boxes[1].keys, boxes[0].keys)


def test_which_tensors_are_one_may_change():
    first, second = Box(), Box()

    def function(x):
        first.keys.add_(x)
        return (first.keys * second.keys).sum() + (first.keys is second.keys)

    compiled = funcaot.compile(function, backend="eager")
    for number in range(9):
        kept = torch.randn(2 + number % 4, 3)
        others = [kept, kept.view_as(kept), torch.randn_like(kept)]
        found = []
        for called in (function, compiled):
            first.keys = kept.clone()
            second.keys = [first.keys, first.keys.view_as(first.keys), others[2]][number % 3]
            found.append((called(torch.ones(3)), first.keys, second.keys.clone()))
        assert_close(found[1], found[0])


def test_under_transforms():
    box = Box()
    compiled = funcaot.compile(lambda x: (box.keys @ x).sin().sum(), backend="eager")
    for size in (2, 3, 4, 5):
        box.keys = torch.randn(size, 2)
        x = torch.randn(3, 2)
        assert_close(compiled(x[0]), compiled.function(x[0]))
        found = torch.func.vmap(torch.func.grad(compiled))(x)
        assert_close(found, torch.func.vmap(torch.func.grad(compiled.function))(x))
        assert_close(
            torch.func.hessian(compiled)(x[0]), torch.func.hessian(compiled.function)(x[0])
        )


def test_programs_of_an_object_that_is_gone_can_be_dropped():
    box = Box()
    compiled = funcaot.compile(lambda x, box: x * len(range(box.size)), backend="eager")
    for size in (2, 3):
        box.size = size
        assert_close(compiled(torch.ones(2), box), torch.full((2,), float(size)))
    assert len(compiled.entries) == 2
    del box
    compiled.clear()
    assert compiled.entries == ()
