"""A tensor that a function is given and also reaches: ``is`` says what it says in eager."""

import types

import pytest
import torch

import funcaot


class Holder(torch.nn.Module):
    def __init__(self, tensor):
        super().__init__()
        self.register_buffer("buffer", tensor)
        self.pair = (tensor, 2)
        self.items = [0, tensor]
        self.table = {"x": tensor}
        self.space = types.SimpleNamespace(inner=tensor)


PLACES = {
    "buffer": lambda h: h.buffer,
    "tuple": lambda h: h.pair[0],
    "list": lambda h: h.items[1],
    "dictionary": lambda h: h.table["x"],
    "namespace": lambda h: h.space.inner,
}


def asks(x, y):
    return x * 2 + y if x is y else x * 3 - y


def asks_ids(x, y):
    return x * 2 + y if id(x) == id(y) else x * 3 - y


def asks_after_views(x, y):
    return x * 2 + y if x.view_as(x) is y else (x * 3 - y if x is y else x - y)


def asks_after_writing(x, y):
    z = x.add_(1)
    return z * 2 + (z is y) + (z is x) + y


def gives_back(x, y):
    return (x, y, x * 2) if x is y else (y, x)


def counts_tensors(x, y):
    return x * len({x, y}) + y.sum()


def shapes(x, y):
    return x.reshape(-1, 1) @ y.reshape(1, -1) if x is y else x * y.shape[0]


def writes_when_same(x, y):
    if x is y:
        x.mul_(2)
    return x + y


def detaches(x, y):
    return x.detach() * y if x is y else x * y.detach()


QUESTIONS = [asks, asks_ids, asks_after_views, asks_after_writing, gives_back, counts_tensors]
QUESTIONS += [shapes, writes_when_same, detaches]


def outcome(value, x, holder):
    if isinstance(value, tuple):
        return [outcome(each, x, holder) for each in value]
    return value.tolist(), value is x, value is holder.buffer, value.requires_grad


def story(question, place, compile_, *, sizes=(3,), grad=False):
    """Calls with the tensor itself, with equal ones and with the tensor again."""
    told = []
    read = PLACES[place]

    def function(x, holder):
        return question(x, read(holder))

    run = compile_(function)
    for size in sizes:
        held = torch.arange(1.0, size + 1)
        leaf = held.clone().requires_grad_() if grad else None
        held = held if leaf is None else leaf * 1
        holder = Holder(held)
        for given in ("itself", "itself", "clone", "view", "itself", "clone"):
            x = {"itself": held, "clone": held.clone(), "view": held.view_as(held)}[given]
            result = run(x, holder)
            told.append((outcome(result, x, holder), x.tolist(), held.tolist()))
            if leaf is not None and not isinstance(result, tuple) and result.requires_grad:
                (found,) = torch.autograd.grad(result.sum(), leaf, retain_graph=True)
                told.append(found.tolist())
    return told, run


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question(question, place):
    expected, _ = story(question, place, lambda f: f)
    found, run = story(question, place, lambda f: funcaot.compile(f, backend="eager"))
    assert found == expected
    assert len(run.entries) <= 4


@pytest.mark.parametrize("question", [asks, counts_tensors, detaches, gives_back, shapes])
def test_with_gradients_and_other_sizes(question):
    expected, _ = story(question, "tuple", lambda f: f, sizes=(3, 4, 5), grad=True)
    found, _ = story(
        question,
        "tuple",
        lambda f: funcaot.compile(f, backend="eager"),
        sizes=(3, 4, 5),
        grad=True,
    )
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_on_the_default_backend(question):
    expected, _ = story(question, "tuple", lambda f: f, sizes=(3, 4))
    assert story(question, "tuple", funcaot.compile, sizes=(3, 4))[0] == expected


def test_gradients_of_it_are_read_and_assigned():
    told = []
    for compile_ in (lambda f: f, lambda f: funcaot.compile(f, backend="eager")):
        kept = torch.ones(3, requires_grad=True)
        kept.grad = torch.full((3,), 2.0)

        def function(x, kept=kept):
            y = x * 2 if x is kept else x * 3
            y.sum().backward()
            x.mark = 3
            return y.detach() + x.grad

        run = compile_(function)
        told.append([])
        for x in (kept, kept, torch.ones(3, requires_grad=True), kept):
            found = run(x)
            told[-1].append((found.tolist(), x.grad.tolist(), kept.grad.tolist(), x.mark))
    assert told[0] == told[1]


def test_it_is_stored():
    told = []
    for compile_ in (lambda f: f, lambda f: funcaot.compile(f, backend="eager")):
        state = types.SimpleNamespace(last=torch.ones(3), same=0)

        def function(x, state=state):
            if x is state.last:
                state.same += 1
            state.last = x
            return x * 2

        run, other = compile_(function), torch.zeros(3)
        told.append([])
        for x in (state.last, state.last, other, other, state.last, torch.ones(3)):
            found = run(x)
            told[-1].append((found.tolist(), state.same, state.last is x))
    assert told[0] == told[1]


def test_under_transforms():
    kept = torch.ones(3)

    def function(x):
        return (x * 2 if x is kept else x * 3).sum()

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        assert compiled(kept).item() == 6
        assert torch.func.grad(compiled)(kept).tolist() == [3.0] * 3
        assert torch.func.vmap(compiled)(kept.expand(2, 3)).tolist() == [9.0, 9.0]
        assert compiled(torch.ones(3)).item() == 9
