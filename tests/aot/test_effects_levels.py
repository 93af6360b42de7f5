"""The matrix of effects under levels of torch.func, against eager."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.effect_cases import ALIASES, MUTATIONS

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


LEVELS = {
    "grad": lambda program: torch.func.grad(summed(program), argnums=(0, 1)),
    "vjp": pulled,
    "jvp": lambda program: lambda x, w: torch.func.jvp(program, (x, w), (x.cos(), w.sin())),
    "vmap": torch.func.vmap,
    "functionalize": torch.func.functionalize,
    "vmap of grad": lambda program: torch.func.vmap(torch.func.grad(summed(program), (0, 1))),
}


def operands(level):
    batch = (3,) if level.startswith("vmap") else ()
    x = torch.linspace(0.5, 2, 6 * (3 if batch else 1), dtype=torch.float64).view(*batch, 2, 3)
    w = torch.linspace(1.5, 2, 3, dtype=torch.float64) if batch else torch.tensor(1.5).double()
    return x, w


def outcome(program, level):
    try:
        return LEVELS[level](program)(*operands(level))
    except (RuntimeError, ValueError, UnsupportedError) as error:
        return error


def check_level(mutation, level):
    """Compare each kind of alias; the number of those that are refused though eager does them."""
    write, refused = MUTATIONS[mutation], []
    for name, alias in ALIASES.items():

        def function(x, w, alias=alias):
            write(x, w)
            return alias(x)

        compiled = funcaot.compile(function, backend="eager")
        for writes in (False, True):
            expected = outcome(calling(function, writes=writes), level)
            actual = outcome(calling(compiled, writes=writes), level)
            if isinstance(expected, Exception):
                assert isinstance(actual, Exception), f"{name}, {writes}: eager {expected!r}"
                continue
            if isinstance(actual, UnsupportedError):
                refused.append((name, writes, str(actual)))
                continue
            if isinstance(actual, Exception):
                raise AssertionError(f"{name}, {writes}: {actual!r}") from actual
            try:
                assert_close(actual, expected, rtol=1e-10, atol=1e-12)
            except AssertionError as error:
                raise AssertionError(f"{name}, {writes}: {error}") from error
    return refused


# The rest of the mutations are in the slow group.
USUAL = ("none", "by a tensor", "through a view")
# What differs from eager: shapes of batched inputs are refused, the others with an error of torch;
# a write through `detach` under jvp takes the caller's tangent away (docs/effects.md).
WRONG = {
    **dict.fromkeys(("t_", "unsqueeze_"), ("grad", "vjp", "vmap", "vmap of grad")),
    **dict.fromkeys(("write and t_", "transpose_ and write"), ("vmap", "vmap of grad")),
    **dict.fromkeys(("copy_", "detached"), ("jvp",)),
    # Eager has no out= there.
    "out": ("jvp", "vmap", "vmap of grad"),
}


def cases():
    for mutation in MUTATIONS:
        for level in LEVELS:
            marks = [] if mutation in USUAL else [pytest.mark.slow]
            if level in WRONG.get(mutation, ()):
                marks.append(pytest.mark.xfail(reason="differs from eager", strict=False))
            yield pytest.param(mutation, level, marks=marks)


@pytest.mark.parametrize(("mutation", "level"), list(cases()))
def test_matrix_under_levels(mutation, level):
    refused = check_level(mutation, level)
    assert not refused, refused
