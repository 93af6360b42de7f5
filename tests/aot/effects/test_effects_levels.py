"""The matrix of effects under levels of torch.func, against eager."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.effects.effect_cases import ALIASES, MUTATIONS
from tests.hostile import COMPILER

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


# A tensor of ones of shape (4, 3) that lies in another order than the usual one.
ORDERS = {
    "transposed": lambda: torch.ones(3, 4).t(),
    "rows of the transposed": lambda: torch.ones(3, 6).t()[1:5].clone(),
    "permuted": lambda: torch.ones(3, 1, 4).permute(1, 2, 0).squeeze(0),
    "channels last": lambda: (
        torch.ones(1, 4, 1, 3).contiguous(memory_format=torch.channels_last)[0, :, 0].clone()
    ),
}
WRITTEN_ROWS = {
    "copied": lambda x, y: x[0].copy_(y),
    "assigned": lambda x, y: x.__setitem__(slice(1, 3), y * y),
    "added to a column": lambda x, y: x[:, 1].add_(y.sum()),
    "a view of a view": lambda x, y: x.t()[1, 2:].mul_(y[:2]),
}


@pytest.mark.parametrize(
    ("order", "write"),
    [("transposed", "copied")]
    + [
        pytest.param(order, write, marks=pytest.mark.slow)
        for order in ORDERS
        for write in WRITTEN_ROWS
        if (order, write) != ("transposed", "copied")
    ],
)
def test_tangents_are_written_to_views_in_any_order(order, write):
    """Torch writes the tangent by ``as_strided``, where what the view is of has none yet."""

    def function(y):
        x = ORDERS[order]().clone()
        WRITTEN_ROWS[write](x, y)
        return x.sin() * 2

    y, tangent = torch.rand(3), torch.rand(3)
    for transform in (
        lambda y: torch.func.jvp(function, (y,), (tangent,)),
        torch.func.jacfwd(function),
        torch.func.jacrev(lambda y: torch.func.jvp(function, (y,), (tangent,))[1]),
    ):
        compiled = funcaot.compile(transform, backend=COMPILER)
        for _ in range(2):
            torch.testing.assert_close(compiled(y), transform(y))
    one = funcaot.compile(lambda y: torch.func.jvp(function, (y,), (tangent,)), backend=COMPILER)
    rows = [torch.func.jvp(function, (row,), (tangent,)) for row in torch.stack([y, 2 * y])]
    several = torch.func.vmap(one)(torch.stack([y, 2 * y]))
    torch.testing.assert_close(
        several, tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    )


def test_a_window_whose_elements_share_memory_is_not_written_to():
    """Eager writes to them one after another; a graph would compute each of the old value."""
    compiled = funcaot.compile(
        lambda x: (x * 2).as_strided((3, 3), (1, 1)).mul_(3), backend="eager"
    )
    with pytest.raises(UnsupportedError, match="whose elements share memory"):
        compiled(torch.ones(24))
