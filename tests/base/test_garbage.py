"""Full garbage collections are put off while a graph is compiled."""

import gc

import pytest
import torch

import funcaot
from funcaot.base.garbage import without_full_collections


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_restored_after_the_last_user():
    with without_full_collections():
        young, between, full = gc.get_threshold()
        assert young > 700 and between == 10 and full > 1_000_000
        with without_full_collections():
            pass
        assert gc.get_threshold() == (young, between, full)
    assert gc.get_threshold() == (700, 10, 10)


def test_new_garbage_is_collected_meanwhile():
    class Circle:
        alive = 0

        def __init__(self):
            self.itself = self
            Circle.alive += 1

        def __del__(self):
            Circle.alive -= 1

    with without_full_collections():
        for _ in range(50_000):
            Circle()
        assert Circle.alive < 50_000


def test_thresholds_of_others_stay():
    with without_full_collections():
        gc.set_threshold(500, 5, 5)
    assert gc.get_threshold() == (500, 5, 5)
    gc.set_threshold(0, 5, 5)
    with without_full_collections():
        assert gc.get_threshold() == (0, 5, 5)
    assert gc.get_threshold() == (0, 5, 5)


def test_a_large_backend_sees_no_full_collection():
    seen = []

    def backend(module, inputs):
        seen.append(gc.get_threshold())
        return module

    x = torch.rand(3, requires_grad=True)
    funcaot.compile(torch.sin, backend=backend)(x).backward(torch.ones(3))
    assert len(seen) == 2 and min(full for *_, full in seen) > 1_000_000
    assert gc.get_threshold() == (700, 10, 10)
