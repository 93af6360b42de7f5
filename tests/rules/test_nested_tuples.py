"""Nested tuples taken apart by hand, against pytree."""

from collections import namedtuple

import pytest
import torch
from torch.utils import _pytree as pytree

from funcaot.rules.batching import batch_size_of, dims_per_leaf, unbatched
from funcaot.rules.nested_tuples import dimensions_of_leaves, filled, plain_leaves

X, Y = torch.zeros(3, 2), torch.zeros(2, 3)
Pair = namedtuple("Pair", ["first", "second"])
PLAIN = [X, None, 1.5, (), (X,), (X, Y), (X, (Y, None), 2), ((), ((X,),)), ("name", True, X)]
OTHER = [[X], (X, [Y]), {"x": X}, (X, {"y": Y}), Pair(X, Y), (Pair(X, Y), 1), (X, 1j)]


@pytest.mark.parametrize("tree", PLAIN, ids=str)
def test_leaves_are_those_of_pytree(tree):
    leaves = plain_leaves(tree)
    expected, spec = pytree.tree_flatten(tree)
    assert leaves is not None
    assert len(leaves) == len(expected)
    assert all(ours is theirs for ours, theirs in zip(leaves, expected, strict=True))
    numbers = list(range(len(leaves)))
    assert filled(tree, numbers) == pytree.tree_unflatten(numbers, spec)


@pytest.mark.parametrize("tree", OTHER, ids=str)
def test_other_trees_are_left_to_pytree(tree):
    assert plain_leaves(tree) is None
    physical, dims = unbatched(tree, 1)
    assert pytree.tree_structure(physical) == pytree.tree_structure(tree)
    assert set(pytree.tree_leaves(dims)) <= {None}


@pytest.mark.parametrize(
    ("tree", "dims", "expected"),
    [
        ((X, Y), (0, None), [0, None]),
        ((X, (Y, X)), (None, 1), [None, 1, 1]),
        ((X, (Y, X)), (None, (1, 0)), [None, 1, 0]),
        ((X, (Y, X)), 0, [0, 0, 0]),
        (X, -1, [-1]),
    ],
)
def test_dimensions_are_broadcast_over_subtrees(tree, dims, expected):
    assert dimensions_of_leaves(tree, dims) == expected
    assert dims_per_leaf(dims, tree) == expected


@pytest.mark.parametrize(("tree", "dims"), [((X, Y), (0,)), ((X, Y), ((0, 0), 0)), (X, (0,))])
def test_dimensions_that_do_not_match(tree, dims):
    assert dimensions_of_leaves(tree, dims) is None
    with pytest.raises(AssertionError, match="don't match"):
        dims_per_leaf(dims, tree)


def test_lists_have_dimensions_too():
    assert dims_per_leaf([0, None], [X, Y]) == [0, None]
    assert dims_per_leaf((0, [1, None]), (X, [Y, X])) == [0, 1, None]
    assert batch_size_of((Y, [X, 3]), (None, [0, None])) == 3
