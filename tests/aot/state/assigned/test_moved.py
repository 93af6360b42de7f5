"""Where one object is several times in a list, or numbers are equal, each call moves its own."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch

import funcaot


def ring(w):
    w.q = deque([torch.zeros(2)] * 3, maxlen=3)


def zeros(w):
    w.q = [torch.zeros(2)] * 3


def numbers(w):
    w.q, w.n = deque([0] * 3, maxlen=3), 0


def listed_numbers(w):
    w.q = [0, 0, 1]


def empty_ring(w):
    w.q = deque(maxlen=3)


def append(x, w):
    w.q.append(x.detach())


def append_left(x, w):
    w.q.appendleft(x.detach())


def append_and_pop(x, w):
    w.q.append(x.detach())
    w.q.pop(0)


def shift(x, w):
    w.q[:-1] = w.q[1:]
    w.q[-1] = x.detach()


def rotate(x, w):
    w.q.rotate(1)
    w.q[0] = x.detach()


def swap(x, w):
    w.q[0], w.q[1], w.q[2] = w.q[1], w.q[2], x.detach()


def insert_and_pop(x, w):
    w.q.insert(0, x.detach())
    w.q.pop()


def count(x, w):
    w.q.append(w.n)
    w.n += 1


def append_zero(x, w):
    w.q.append(0)


def turn(x, w):
    w.q[0], w.q[1], w.q[2] = w.q[1], w.q[2], w.q[0]


CASES = [
    (ring, append),
    (ring, append_left),
    (ring, rotate),
    (empty_ring, append),
    (empty_ring, append_left),
    (zeros, append_and_pop),
    (zeros, shift),
    (zeros, swap),
    (zeros, insert_and_pop),
    (numbers, count),
    (numbers, append_zero),
    (listed_numbers, turn),
]


def shown(w):
    return [float(each.sum()) if isinstance(each, torch.Tensor) else each for each in w.q]


def life(make, change, *, compiled):
    def step(x, w):
        change(x, w)
        return x + 1

    w = SimpleNamespace()
    make(w)
    function = funcaot.compile(step, backend="eager") if compiled else step
    seen = []
    for call in range(7):
        if call == 5:
            w.q[0] = w.q[1]
        function(torch.full((2,), float(call)), w)
        seen.append(shown(w))
    return seen, funcaot.report(function).cache_misses if compiled else 0


@pytest.mark.parametrize(("make", "change"), CASES, ids=lambda case: case.__name__)
def test_each_call_moves_what_is_there(make, change):
    expected, _ = life(make, change, compiled=False)
    seen, programs = life(make, change, compiled=True)
    assert seen == expected
    assert programs <= 5


def test_on_inductor():
    w = SimpleNamespace()
    ring(w)
    compiled = funcaot.compile(lambda x: (w.q.append(x.detach()), x + sum(w.q))[1])
    for call in range(1, 6):
        got = compiled(torch.full((2,), float(call)))
    assert shown(w) == [6.0, 8.0, 10.0]
    assert got[0] == 5.0 + 3 + 4 + 5
