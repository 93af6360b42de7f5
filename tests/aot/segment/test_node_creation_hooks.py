"""Hooks around a call that see each node of autograd are no part of a program."""

import contextlib

import pytest
import torch
from torch.autograd import graph

import funcaot

hook_for_nodes = getattr(graph, "node_creation_hook", None)
pytestmark = pytest.mark.skipif(hook_for_nodes is None, reason="such hooks are of torch 2.15")


def function(x):
    return (x.sin() * 2).exp()


def doubling(node):
    if "Sin" in node.name():
        node.register_hook(lambda grad_inputs, _: tuple(2 * grad for grad in grad_inputs))


def gradients(call):
    x = torch.linspace(0, 1, 3, requires_grad=True)
    (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    return first, torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize("first", [True, False])
def test_a_program_is_the_same_with_one_around_and_without(first):
    compiled, seen = funcaot.compile(function, backend="eager"), []

    def note(node):
        seen[-1].append(node.name())
        doubling(node)

    for under in (first, not first, first):
        seen.append([])
        with hook_for_nodes(note) if under else contextlib.nullcontext():
            found = gradients(compiled)
        torch.testing.assert_close(found, gradients(function))
    # A program is one node, and what its ops would be is never seen.
    if first:
        assert "SinBackward0" not in seen[0] and seen[0] == seen[2] != []


def test_one_inside_is_part_of_the_program():
    def inside(x):
        with hook_for_nodes(doubling):
            y = x.sin()
        return (y * 2).exp()

    compiled = funcaot.compile(inside, backend="eager")
    for _ in range(2):
        with hook_for_nodes(lambda node: None):
            torch.testing.assert_close(gradients(compiled), gradients(inside))


def test_one_around_is_there_again_after_an_error():
    def failing(x):
        raise ZeroDivisionError

    seen = []
    with hook_for_nodes(lambda node: seen.append(node.name())):
        with pytest.raises(ZeroDivisionError):
            funcaot.compile(failing, backend="eager")(torch.ones(2, requires_grad=True))
        assert not seen
        torch.ones(2, requires_grad=True).sin()
    assert "SinBackward0" in seen
