"""Each part of a call that decides what runs: flip it, one compilation; flip it back, none."""

import collections
import contextlib
import dataclasses

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import funcaot
from funcaot.errors import UnsupportedError

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    y: torch.Tensor


class Bag:
    def __init__(self, items, label):
        self.items, self.label = items, label


torch.export.register_dataclass(Point, serialized_type_name="tests.Point")
_pytree.register_pytree_node(
    Bag,
    lambda bag: (bag.items, bag.label),
    lambda items, label: Bag(list(items), label),
    serialized_type_name="tests.Bag",
)


class Named(torch.Tensor):
    """A subclass that changes nothing."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def total(tree):
    """A number from whatever tensors and numbers a tree has."""
    leaves = _pytree.tree_leaves(tree)
    result = torch.zeros(())
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            # .abs() so that a conj bit, a neg bit and strides all take part.
            result = result + (leaf.abs() * torch.arange(leaf.numel()).view(leaf.shape)).sum()
        elif isinstance(leaf, int | float) and leaf == leaf:
            result = result + leaf
    return result


def compilations(compiled):
    return funcaot.report(compiled).cache_misses


def check_flip(before, after, *, during_before=None, during_after=None, function=total):
    """Call with one, the other, and back; every call again, so that generated code runs too."""
    compiled = funcaot.compile(function, backend="eager")
    during_before = during_before or contextlib.nullcontext
    during_after = during_after or contextlib.nullcontext

    def call(make, during):
        for _ in range(3):
            argument = make()
            with during():
                assert_close(compiled(argument), function(argument))

    call(before, during_before)
    assert compilations(compiled) == 1
    call(after, during_after)
    assert compilations(compiled) == 2, "the flip wasn't noticed"
    call(before, during_before)
    call(after, during_after)
    assert compilations(compiled) == 2, "going back compiled again"


def matrix(*shape, dtype=torch.float32):
    return torch.ones(*(shape or (2, 3)), dtype=dtype) * 2


SAME = torch.ones(3)

ARGUMENTS = {
    "shape": (matrix, lambda: matrix(3, 3)),
    "rank": (matrix, lambda: matrix(6)),
    "strides": (matrix, lambda: matrix(3, 2).t()),
    "expanded": (matrix, lambda: torch.ones(3).expand(2, 3)),
    "dtype": (matrix, lambda: matrix(dtype=torch.float64)),
    "layout": (matrix, lambda: matrix().to_sparse()),
    "conj": (
        lambda: matrix(dtype=torch.complex64),
        lambda: matrix(dtype=torch.complex64).conj(),
    ),
    "neg": (matrix, lambda: (matrix().to(torch.complex64) * 1j).conj().imag.reshape(2, 3)),
    "requires_grad": (matrix, lambda: matrix().requires_grad_()),
    "leaf": (lambda: matrix().requires_grad_(), lambda: matrix().requires_grad_() * 1),
    "parameter": (lambda: matrix().requires_grad_(), lambda: nn.Parameter(matrix())),
    "subclass": (matrix, lambda: matrix().as_subclass(Named)),
    "list or tuple": (lambda: [matrix()], lambda: (matrix(),)),
    "length": (lambda: [matrix()], lambda: [matrix(), matrix()]),
    "keys": (lambda: {"a": matrix()}, lambda: {"b": matrix()}),
    "order of keys": (
        lambda: {"a": matrix(), "b": matrix()},
        lambda: {"b": matrix(), "a": matrix()},
    ),
    "dict or ordered dict": (
        lambda: {"a": matrix()},
        lambda: collections.OrderedDict(a=matrix()),
    ),
    "namedtuple": (lambda: (matrix(), matrix()), lambda: Pair(matrix(), matrix())),
    "none": (lambda: [matrix(), None], lambda: [matrix(), matrix()]),
    "dataclass": (lambda: (matrix(), matrix()), lambda: Point(matrix(), matrix())),
    "registered": (lambda: [matrix()], lambda: Bag([matrix()], "a")),
    "context of a registered": (lambda: Bag([matrix()], "a"), lambda: Bag([matrix()], "b")),
    "same twice": (lambda: [matrix(3), matrix(3)], lambda: [SAME, SAME]),
    "int": (lambda: [matrix(), 1], lambda: [matrix(), 2]),
    "float": (lambda: [matrix(), 1.5], lambda: [matrix(), 2.5]),
    "int or float": (lambda: [matrix(), 1], lambda: [matrix(), 1.0]),
    "int or bool": (lambda: [matrix(), 1], lambda: [matrix(), True]),
    "nan": (lambda: [matrix(), 0.0], lambda: [matrix(), float("nan")]),
    "sign of zero": (lambda: [matrix(), 0.0], lambda: [matrix(), -0.0]),
    "str": (lambda: [matrix(), "mean"], lambda: [matrix(), "sum"]),
    "enum-like": (lambda: [matrix(), torch.float32], lambda: [matrix(), torch.float64]),
    "object": (lambda: [matrix(), matrix], lambda: [matrix(), total]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name):
    check_flip(*ARGUMENTS[name])


@contextlib.contextmanager
def setting(apply, value, usual):
    apply(value)
    try:
        yield
    finally:
        apply(usual)


AMBIENT = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: torch.device("cpu"),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "precision": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "deterministic, warn only": lambda: setting(
        lambda on: torch.use_deterministic_algorithms(on, warn_only=on), True, False
    ),
}


@pytest.mark.parametrize("name", AMBIENT)
def test_ambient(name):
    x = torch.ones(2, 3, requires_grad=True)
    check_flip(lambda: x, lambda: x, during_after=AMBIENT[name])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            lambda: torch.autocast("cpu", dtype=torch.bfloat16),
            lambda: torch.autocast("cpu", dtype=torch.float16),
        ),
        (
            lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True),
            lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        ),
        (
            lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
            lambda: setting(torch.set_float32_matmul_precision, "high", "highest"),
        ),
    ],
    ids=["autocast dtype", "autocast cache", "medium or high precision"],
)
def test_from_one_ambient_state_to_another(first, second):
    x = torch.ones(2, 3)
    check_flip(lambda: x, lambda: x, during_before=first, during_after=second)


def test_modes():
    mode = Watching()
    x = torch.ones(2, 3)
    check_flip(lambda: x, lambda: x, during_after=lambda: mode)


def test_threads_of_torch_are_no_part_of_a_signature():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    threads = torch.get_num_threads()
    x = torch.ones(3)
    compiled(x), compiled(x), compiled(x)
    try:
        torch.set_num_threads(threads + 1)
        for _ in range(3):
            assert_close(compiled(x), x.sin())
    finally:
        torch.set_num_threads(threads)
    assert compilations(compiled) == 1


def test_an_unhashable_value_says_what_to_do():
    compiled = funcaot.compile(lambda x, options: x, backend="eager")
    with pytest.raises(UnsupportedError, match="unhashable slice"):
        compiled(torch.ones(2), slice(torch.tensor(1)))


def test_a_constant_object_is_not_kept_alive():
    class Options:
        scale = 2.0

    import gc
    import weakref

    compiled = funcaot.compile(lambda x, options: x * options.scale, backend="eager")
    options = Options()
    reference = weakref.ref(options)
    for _ in range(3):
        assert_close(compiled(torch.ones(2), options), torch.full((2,), 2.0))
    del options
    gc.collect()
    assert reference() is None
    other = Options()
    other.scale = 3.0
    assert_close(compiled(torch.ones(2), other), torch.full((2,), 3.0))
    assert len(compiled.entries) == 2
    again = Options()
    assert_close(compiled(torch.ones(2), again), torch.full((2,), 2.0))
    assert len(compiled.entries) == 2, (
        "another object like it has the entry of the one that is gone"
    )


def test_slices_among_arguments():
    compiled = funcaot.compile(lambda x, part: x[part] * 2, backend="eager")
    x = torch.randn(4, 5)
    parts = [
        slice(0, 2),
        slice(1, 3),
        slice(0, 2),
        (slice(0, 2), slice(None, None, 2)),
        slice(1, 3),
    ]
    for part in parts:
        assert_close(compiled(x, part), x[part] * 2)
    assert funcaot.report(compiled).cache_misses == 3
    with pytest.raises(UnsupportedError, match="unhashable slice"):
        compiled(x, slice(torch.tensor(0), 2))
