"""The matrix of effects under levels of torch.func, against eager."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.effects.effect_cases import ALIASES, MUTATIONS

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def calling(called, *, writes):
    """A caller that gives the function a tensor of its own and looks at everything afterwards."""

    def program(x, w):
        y = x * 1
        outputs = called(y, w)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        if writes:
            outputs[0].mul_(1.5)
        return tuple(value for value in (*outputs, y) if value.is_floating_point())

    return program


def summed(program):
    def total(x, w):
        parts = [
            (value * torch.arange(1, value.numel() + 1, dtype=value.dtype).view(value.shape)).sum()
            for value in program(x, w)
        ]
        return sum(part * (index + 1) for index, part in enumerate(parts))

    return total


def pulled(program):
    def run(x, w):
        outputs, pull = torch.func.vjp(program, x, w)
        return outputs, pull(tuple(value.detach().cos() for value in outputs))

    return run


def pushed(program):
    return lambda x, w: torch.func.jvp(program, (x, w), (x.cos(), w.sin()))


LEVELS = {
    "grad": lambda program: torch.func.grad(summed(program), argnums=(0, 1)),
    "vjp": pulled,
    "jvp": pushed,
    "vmap": torch.func.vmap,
    "functionalize": torch.func.functionalize,
    "vmap of grad": lambda program: torch.func.vmap(torch.func.grad(summed(program), (0, 1))),
    "vmap of jvp": lambda program: torch.func.vmap(pushed(program)),
    "jvp of vmap": lambda program: pushed(torch.func.vmap(program)),
}


def operands(level):
    batch = (3,) if "vmap" in level else ()
    x = torch.linspace(0.5, 2, 6 * (3 if batch else 1), dtype=torch.float64).view(*batch, 2, 3)
    w = torch.linspace(1.5, 2, 3, dtype=torch.float64) if batch else torch.tensor(1.5).double()
    return x, w


def outcome(program, level):
    try:
        return LEVELS[level](program)(*operands(level))
    except (RuntimeError, ValueError, UnsupportedError) as error:
        return error


def check_level(mutation, level):
    """Compare each kind of alias."""
    write, said = MUTATIONS[mutation], MUTATIONS[mutation]
    if (mutation, level) in MORE_THAN_EAGER:
        said = MORE_THAN_EAGER[mutation, level]
    for name, alias in ALIASES.items():

        def function(x, w, alias=alias, write=write):
            write(x, w)
            return alias(x)

        def meant(x, w, alias=alias):
            return function(x, w, alias, said)

        compiled = funcaot.compile(function, backend="eager")
        for writes in (False, True):
            if said is not write:
                assert isinstance(outcome(calling(function, writes=writes), level), RuntimeError)
            expected = outcome(calling(meant, writes=writes), level)
            actual = outcome(calling(compiled, writes=writes), level)
            if isinstance(expected, Exception):
                assert isinstance(actual, Exception), f"{name}, {writes}: eager {expected!r}"
                continue
            if isinstance(actual, Exception):
                raise AssertionError(f"{name}, {writes}: {actual!r}") from actual
            try:
                assert_close(actual, expected, rtol=1e-10, atol=1e-12)
            except AssertionError as error:
                raise AssertionError(f"{name}, {writes}: {error}") from error


# The rest of the mutations are in the slow group.
USUAL = ("none", "by a tensor", "through a view")
USUAL_LEVELS = ("grad", "vjp", "jvp", "vmap", "functionalize", "vmap of grad")
# Torch can't batch out=; a graph without it can be batched, and does what the same write by copy_
# does.
MORE_THAN_EAGER = {
    ("out", level): lambda x, w: x.detach()[0, :1].squeeze().copy_(w.detach() + 1)
    for level in LEVELS
    if "vmap" in level
}


def cases():
    for mutation in MUTATIONS:
        for level in LEVELS:
            usual = mutation in USUAL and level in USUAL_LEVELS
            yield pytest.param(mutation, level, marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize(("mutation", "level"), list(cases()))
def test_matrix_under_levels(mutation, level):
    check_level(mutation, level)
