"""Torch's operators for control flow compute what the Python that they stand for computes."""

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.while_loop import while_loop_op

import funcaot
from funcaot.aot.capture.control_flow import run
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

WEIGHT = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
LAYER = torch.nn.Linear(3, 3, dtype=torch.float64)


def branches(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: a.sin() * b, lambda a, b: a.cos() * b, (x, y))


def branches_in_python(x, y):
    return x.sin() * y if x.sum() > 0 else x.cos() * y


def nested(x, y):
    def negative(a):
        return torch.cond(y.sum() > 0, lambda b: b * WEIGHT * 2, lambda b: LAYER(b), (a,))

    return torch.cond(x.sum() > 0, lambda a: a * WEIGHT, negative, (x,)) + 0 * y


def nested_in_python(x, y):
    if x.sum() > 0:
        return x * WEIGHT + 0 * y
    return (x * WEIGHT * 2 if y.sum() > 0 else LAYER(x)) + 0 * y


def structured(x, y):
    def chosen(a, b):
        return {"s": a * 2, "t": b.exp()}

    found = torch.cond(x.sum() > 0, chosen, lambda a, b: {"s": b + 1, "t": a * 3}, (x, y))
    return found["s"].sin() + found["t"]


def structured_in_python(x, y):
    return (x * 2).sin() + y.exp() if x.sum() > 0 else (y + 1).sin() + x * 3


def contained(x, y):
    def chosen(pair, named):
        inner = torch.cond(y.sum() > 0, lambda a: a["b"] * 2, lambda a: a["b"] * 3, (named,))
        return pair[0] * inner

    pair, named = (x.sin(), [y]), {"b": x * y}
    return torch.cond(x.sum() > 0, chosen, lambda pair, named: pair[1][0] + x, (pair, named))


def contained_in_python(x, y):
    return x.sin() * x * y * (2 if y.sum() > 0 else 3) if x.sum() > 0 else x + y


def of_sizes(x, y):
    return torch.cond(x.shape[0] > 2, lambda a: a * y, lambda a: a + y, (x,))


def of_sizes_in_python(x, y):
    return x * y if x.shape[0] > 2 else x + y


def counted(x, y):
    zero = torch.tensor(0)
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * y), (zero, x))[1]


def counted_in_python(x, y):
    return x * y * y * y


def grown(x, y):
    return while_loop(lambda a: a.norm() < 5, lambda a: (a * (1.5 + y**2),), (x,))[0]


def grown_in_python(x, y):
    while x.norm() < 5:
        x = x * (1.5 + y**2)
    return x


def never(x, y):
    found = while_loop(lambda a: a.norm() < 0, lambda a: (a * y,), (x,))[0]
    return found.mul_(2) + 0 * y


def never_in_python(x, y):
    return x * 2 + 0 * y


def mapped(x, y):
    return torch_map(lambda a, b: a * b.sin(), torch.stack([x, y, x * y]), y).sum(0)


def mapped_in_python(x, y):
    return sum(a * y.sin() for a in (x, y, x * y))


def scanned(x, y):
    rows = torch.stack([x, y, x * y])
    carried, out = scan(lambda c, a: (c + a * y, c * a), torch.zeros_like(x), rows)
    return carried + out.sum(0)


def scanned_in_python(x, y):
    carried, total = torch.zeros_like(x), torch.zeros_like(x)
    for row in (x, y, x * y):
        carried, total = carried + row * y, total + carried * row
    return carried + total


def scanned_in_containers(x, y):
    def combine(carried, row):
        total, (product,) = carried
        found = {"d": total * row["a"], "s": row["b"] + 1}
        return (total + row["a"], [product * row["b"]]), found

    rows = {"a": torch.stack([x, y]), "b": torch.stack([y, x * y])}
    (total, (product,)), out = scan(combine, (x.sin(), [y.cos()]), rows)
    return total + product + (out["d"] * out["s"]).sum(0)


def scanned_in_containers_in_python(x, y):
    total, product, out = x.sin(), y.cos(), 0
    for a, b in ((x, y), (y, x * y)):
        total, product, out = total + a, product * b, out + total * a * (b + 1)
    return total + product + out


def combined(x, y):
    rows = torch.stack([x, y, x * y, x + y, x - y])
    return associative_scan(lambda a, b: a * b, rows, 0, combine_mode="generic").sum(0)


def combined_in_python(x, y):
    return torch.stack([x, y, x * y, x + y, x - y]).cumprod(0).sum(0)


PAIRS = {
    "cond": (branches, branches_in_python),
    "nested": (nested, nested_in_python),
    "structured": (structured, structured_in_python),
    "containers": (contained, contained_in_python),
    "sizes": (of_sizes, of_sizes_in_python),
    "counted": (counted, counted_in_python),
    "grown": (grown, grown_in_python),
    "never": (never, never_in_python),
    "map": (mapped, mapped_in_python),
    "scan": (scanned, scanned_in_python),
    "scan of containers": (scanned_in_containers, scanned_in_containers_in_python),
    "associative": (combined, combined_in_python),
}


def derivatives(function, x, y):
    """Its value, gradients to second order, and those of ``torch.func``."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    found = [function(x, y)]
    first = torch.autograd.grad((found[0] ** 2).sum(), [x, y], create_graph=True)
    found += first
    found += torch.autograd.grad(sum((g**2).sum() for g in first), [x, y])
    x, y = x.detach(), y.detach()
    found.append(torch.func.grad(lambda a: (function(a, y) ** 2).sum())(x))
    found.append(torch.func.jvp(lambda a: function(a, y), (x,), (y,))[1])
    return found


def check(name, backend, seeds):
    function, python = PAIRS[name]
    compiled = funcaot.compile(function, backend=backend)
    for seed in seeds:
        torch.manual_seed(seed)
        x, y = torch.randn(2, 3, dtype=torch.float64)
        torch.testing.assert_close(derivatives(compiled, x, y), derivatives(python, x, y))


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_derivatives(name):
    check(name, COMPILER, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_on_inductor(name):
    check(name, "inductor", range(2))


def test_each_way_is_a_program():
    compiled = funcaot.compile(branches, backend="eager")
    for sign in (1, -1, 1, -1):
        compiled(sign * torch.ones(3), torch.ones(3))
    assert len(funcaot.report(compiled).entries) == 2


@pytest.mark.parametrize("inside", [True, False])
def test_a_condition_for_each_example(inside):
    def function(x):
        return torch.cond(x.sum(0, keepdim=True) > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    compile_ = funcaot.compile
    batched = compile_(torch.vmap(function)) if inside else torch.vmap(compile_(function))
    expected = torch.stack([row.sin() if row.sum() > 0 else row.cos() for row in x])
    torch.testing.assert_close(batched(x), expected)


def test_a_gradient_that_is_read_in_a_branch():
    weight = torch.ones(3, requires_grad=True)

    @funcaot.compile(backend="eager")
    def function(x):
        return torch.cond(x.sum() > 0, lambda a: a * weight.grad, lambda a: a * 1, (x,))

    for value in (2.0, 3.0):
        weight.grad = torch.full((3,), value)
        torch.testing.assert_close(function(torch.ones(3)), torch.full((3,), value))


def test_values_that_must_not_be_read():
    with (
        funcaot.config.patch(specialize_on_values=False),
        pytest.raises(UnsupportedError, match="reads a number"),
    ):
        funcaot.compile(branches, backend="eager")(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize(
    ("condition", "body", "says"),
    [
        (lambda a: a.sum() < 9, lambda a: a * 2, "a tuple of 1"),
        (lambda a: a.sum() < 9, lambda a: (a * 2, a * 3), "a tuple of 1"),
        (lambda a: a * 2, lambda a: (a * 2,), "has to return a boolean"),
    ],
)
def test_what_a_loop_does_not_take(condition, body, says):
    with pytest.raises(RuntimeError, match=says):
        run(while_loop_op, (condition, body, (torch.ones(3),), ()), {})


@pytest.mark.parametrize("start", [0, 5], ids=["some rounds", "none"])
def test_a_loop_carries_containers(start):
    """The operator gets leaves; what comes out is in the containers that the loop was given."""

    def function(x):
        def body(sizes, counted, x):
            return [sizes[0] + 1, sizes[1]], {"count": counted["count"] + 1}, x * 1.5

        carried = ([x.shape[0], x.shape[1]], {"count": torch.tensor(start)}, x.sin())
        return while_loop(lambda sizes, counted, x: counted["count"] < 3, body, carried)

    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    sizes, counted, last = funcaot.compile(function, backend=COMPILER)(x)
    rounds = max(3 - start, 0)
    assert sizes == [2 + rounds, 3]
    assert list(counted) == ["count"]
    assert counted["count"].item() == start + rounds
    torch.testing.assert_close(last, x.sin() * 1.5**rounds)
    (gradient,) = torch.autograd.grad(last.sum(), x)
    torch.testing.assert_close(gradient, x.cos() * 1.5**rounds)
