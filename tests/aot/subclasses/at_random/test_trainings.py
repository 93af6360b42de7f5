"""Random trainings with wrappers, five steps each, compared with eager after each step.

Compared are results, parameters, buffers, gradients and the optimizer's moments: values, classes,
metadata, strides, versions, which are one object, which share memory and which are views of which;
and all once more when results were written to.
"""

import random

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses import test_distributed_tensors
from tests.aot.subclasses.at_random.test_shared_worlds import different
from tests.aot.subclasses.at_random.trainings import Training
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
mesh = test_distributed_tensors.mesh


class Looks:
    """What can be told of tensors beside values; objects and memory by when they were met."""

    def __init__(self):
        self.numbers, self.alive = {}, []

    def number(self, key, thing):
        self.alive.append(thing)
        return self.numbers.setdefault(key, len(self.numbers))

    def size(self, n):
        if isinstance(n, int):
            return n
        return f"ragged {self.number(('size', str(n)), n)}"

    def __call__(self, value, counted=True, shared=True, inside=False):
        if value is None:
            return None
        told = [
            type(value).__name__,
            *([*map(self.size, of)] for of in (value.shape, value.stride())),
        ]
        told += [value.dtype, value.requires_grad]
        if not inside:
            told += [value.is_leaf, value.grad_fn is None]
        if shared and not inside:
            told.append(self.number(id(value), value))
            told.append(None if value._base is None else self.numbers.get(id(value._base)))
        if counted:
            told.append(value._version)
        if not is_traceable_wrapper_subclass(value):
            if shared:
                storage = value.untyped_storage()  # kept alive: ``data`` gives a tensor another one
                told.append(self.number(("memory", storage._cdata), storage))
            return told
        names, context = value.__tensor_flatten__()
        parts = [getattr(value, name) for name in names]
        inner = [self(p, counted, shared, True) for p in parts if isinstance(p, torch.Tensor)]
        return [*told, names, str(context), inner]


def parts(value):
    """The tensors inside of a wrapper, at every depth; a plain one is itself."""
    if value is None:
        return []
    if not is_traceable_wrapper_subclass(value):
        return [value]
    inner = (getattr(value, name) for name in value.__tensor_flatten__()[0])
    return [p for each in inner if isinstance(each, torch.Tensor) for p in parts(each)]


def copies(values):
    return [part.detach().clone() for value in values for part in parts(value)]


def play(training, compiling):
    """What each step does; ends with what is raised."""
    function, looks, seen = training.step_function(), Looks(), []
    compiled, optimizer, earlier = compiling(function), training.optimizer, []
    for step in range(5):
        try:
            what = training.change(step)
            if training.optimizer is not optimizer:
                optimizer = training.optimizer
                compiled = compiling(training.step_function())
            x = training.batch(step)
            if what == "evaluate":
                with torch.no_grad():
                    results = (
                        compiled(x)
                        if not (training.step_inside or training.ending == "penalty")
                        else ()
                    )
                flat, found = list(results) if isinstance(results, tuple) else [results], []
            else:
                flat, found = training.after(compiled(x), x, what)
            kept, grads, moments = training.state()
            seen.append(("told", [looks(v) for v in (*kept, x)]))
            before = {id(v) for v in (*kept, x)}
            seen.append(("told", [looks(v, id(v) in before) for v in flat]))
            more = [*grads, *found, *moments, x.grad]
            seen.append(("told", [looks(v, False, False) for v in more]))
            everything = [*kept, x, *flat, *earlier]
            seen.append(("values", copies(everything), copies(more)))
            for value in flat:
                if not value.requires_grad and id(value) not in before and value.dim():
                    with torch.no_grad():
                        value.mul_(1.5)
                    seen.append(("values", copies(everything)))
            earlier = flat
        except UnsupportedError as error:
            return [*seen, ("refused", str(error))]
        except Exception as error:  # noqa: BLE001  (whatever a class or autograd raises)
            return [*seen, ("raised", type(error).__name__, str(error)[:200])]
    return seen


def check(seed, mesh, backend=COMPILER):
    """How many things were compared, and why that ended."""
    wanted = play(Training(seed, random.Random(seed), mesh), lambda f: f)
    training, made = Training(seed, random.Random(seed), mesh), []

    def compiling(function):
        made.append(funcaot.compile(function, backend=backend))
        return made[-1]

    found = play(training, compiling)
    ending = found.pop() if found and found[-1][0] == "refused" else None
    for index, (one, other) in enumerate(zip(found, wanted, strict=False)):
        where = f"seed {seed} {index}: {training}"
        if "raised" in (one[0], other[0]):
            assert one[:2] == other[:2], f"{where}: {one[:3]}, eager {other[:3]}"
        elif one[0] == "told":
            assert one == other, f"{where}: {different(one, other)}"
        else:
            for a, b in zip(one[1:], other[1:], strict=True):
                assert len(a) == len(b), where
                for c, d in zip(a, b, strict=True):
                    assert_close(
                        c, d, rtol=2e-3, atol=1e-4, equal_nan=True,
                        msg=lambda text, where=where: f"{where}: {text}",
                    )  # fmt: skip
    assert ending or len(found) == len(wanted), f"seed {seed} {training}"
    return len(found), ending, sum(len(each.entries) for each in made), training, wanted[-1]


def compared(seeds, mesh, backend=COMPILER):
    return sum(check(seed, mesh, backend)[0] for seed in seeds)


def test_trainings(mesh):
    assert compared((4, 26, 43), mesh) > 40


@pytest.mark.slow
def test_trainings_on_the_default_backend(mesh):
    assert compared((202, 205, 219), mesh, "inductor") > 50


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(6))
def test_more_trainings(part, mesh):
    assert compared(range(300 + 25 * part, 325 + 25 * part), mesh) > 300


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(3))
def test_more_trainings_on_the_default_backend(part, mesh):
    assert compared(range(500 + 8 * part, 508 + 8 * part), mesh, "inductor") > 80
