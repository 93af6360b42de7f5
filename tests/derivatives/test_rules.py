"""Every rule of the table against finite differences of the op itself, uncompiled and compiled."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import funcaot
import funcaot.derivatives.special
from funcaot.derivatives.table import derivatives
from funcaot.errors import UnsupportedError
from funcaot.testing.derivatives import FiniteDifferences
from tests.derivatives.cases import CALLS

pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce"),
]

# Compiled in the fast group: of each way to write a rule, one or two.
FAST = {"cdist_2.0", "pdist_3.0", "ctc", "bag_mean", "segment_max", "bessel_j1", "hardsigmoid"}

# Nothing is differentiated by funcaot on the side of these.
DIFFERENCES = FiniteDifferences()


def active(primals):
    return [primal.detach().clone().requires_grad_() for primal in primals]


def directions(primals, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in primals)


def first_order(function, primals):
    """A weighted gradient as a function of the primals."""

    def run(*values):
        inputs = [value.view_as(value) if value.requires_grad else value for value in values]
        inputs = [v if v.requires_grad else v.detach().requires_grad_() for v in inputs]
        outputs = function(*inputs)
        (weights,) = directions([outputs], 1)
        # Curved, so that the op's backward is asked for its derivative by what arrives, too.
        value = (weights * outputs.sin()).sum()
        return torch.autograd.grad(value, inputs, create_graph=True, allow_unused=True)

    return run


def close(actual, expected, tolerance):
    for one, other in zip(actual, expected, strict=True):
        one = torch.zeros_like(other) if one is None else one
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode(name):
    call = CALLS[name]
    primals = call.primals()
    tangents = directions(primals, 2)
    with funcaot.install():
        _, pushed = torch.func.jvp(call.function, tuple(primals), tangents)
    places = tuple(range(len(primals)))
    _, expected = DIFFERENCES.jvp(lambda *p: (call.function(*p),), primals, places, tangents)
    close([pushed], expected, call.tolerance)


def second_order_cases():
    for name in CALLS:
        yield pytest.param(name, "eager", id=f"{name}-eager")
        marks = [] if name in FAST else [pytest.mark.slow]
        yield pytest.param(name, "compiled", id=f"{name}-compiled", marks=marks)


@pytest.mark.parametrize(("name", "how"), list(second_order_cases()))
def test_second_order(name, how):
    call = CALLS[name]
    primals = call.primals()
    places, tangents = tuple(range(len(primals))), directions(primals, 3)

    def differences(*values):
        # Reverse mode of the first order is torch's own where it has one.
        with funcaot.install():
            found = first_order(call.function, values)(*values)
        pairs = zip(found, values, strict=True)
        return tuple(torch.zeros_like(v) if g is None else g.detach() for g, v in pairs)

    _, expected = DIFFERENCES.jvp(differences, primals, places, tangents)
    inputs = active(primals)
    function = call.function
    if how == "compiled":
        function = funcaot.compile(function, backend="eager")
    with funcaot.install() if how == "eager" else nullcontext():
        grads = first_order(function, inputs)(*inputs)
        weighted = sum((g * t).sum() for g, t in zip(grads, tangents, strict=True) if g is not None)
        # The Hessian is symmetric, so its product with a vector is that along the vector.
        found = (None,) * len(inputs)
        if isinstance(weighted, torch.Tensor) and weighted.requires_grad:
            found = torch.autograd.grad(weighted, inputs, allow_unused=True)
    close(found, expected, call.tolerance)


# Without the one beside a tie of coordinates, where differences of differences say little.
SMOOTH = [name for name in CALLS if name != "cdist_1.5"]


@pytest.mark.parametrize("name", SMOOTH)
def test_third_order(name):
    """What is differentiated again is right, too."""
    call = CALLS[name]
    primals = call.primals()
    tangents = directions(primals, 4)

    def second(*values):
        """A product of the Hessian with the tangents, as a function of the primals."""
        inputs = active(values) if not values[0].requires_grad else list(values)
        grads = first_order(call.function, inputs)(*inputs)
        weighted = [(g * t).sum() for g, t in zip(grads, tangents, strict=True) if g is not None]
        value = sum(weighted, torch.zeros(()))
        if not value.requires_grad:
            return tuple(map(torch.zeros_like, inputs))
        return torch.autograd.grad(value, inputs, create_graph=True, materialize_grads=True)

    places = tuple(range(len(primals)))
    with funcaot.install():
        _, expected = DIFFERENCES.jvp(lambda *v: second(*v), primals, places, tangents)
        inputs = active(primals)
        weighted = sum((g * t).sum() for g, t in zip(second(*inputs), tangents, strict=True))
        found = (None,) * len(inputs)
        if weighted.requires_grad:
            found = torch.autograd.grad(weighted, inputs, allow_unused=True)
    scale = 1 + max(value.abs().max().item() for value in expected)
    found = [None if value is None else value / scale for value in found]
    close(found, [value / scale for value in expected], max(call.tolerance, 3e-5))


@pytest.mark.parametrize("name", SMOOTH)
def test_forward_over_forward(name):
    call = CALLS[name]
    primals = call.primals()
    tangents, others = directions(primals, 5), directions(primals, 6)

    def pushed(*values):
        return (torch.func.jvp(call.function, values, tangents)[1],)

    places = tuple(range(len(primals)))
    with funcaot.install():
        _, expected = DIFFERENCES.jvp(pushed, primals, places, others)
        (found,) = torch.func.jvp(pushed, tuple(primals), others)[1]
    close([found], expected, call.tolerance)


class Seen(TorchDispatchMode):
    """Keeps the calls of ops that have a formula, with what torch's kernel returned."""

    def __init__(self):
        super().__init__()
        self.rules = {rule.op: rule for rule in derivatives() if rule.formula is not None}
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in self.rules:
            self.calls.append((self.rules[func], args, kwargs or {}, result))
        return result


def test_gradients_scaled_by_frequency_are_refused():
    """Torch's kernel divides by the count of another row, so there is nothing to agree with."""
    table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def run(table):
        indices, starts = torch.tensor([0, 2, 2, 1, 3, 0]), torch.tensor([0, 2, 5])
        return torch.nn.functional.embedding_bag(
            indices, table, starts, mode="sum", scale_grad_by_freq=True
        )

    with funcaot.install():
        grads = first_order(run, [table])(table)
        with pytest.raises(UnsupportedError, match="counts of other rows"):
            grads[0].sum().backward()


def test_formulas_are_the_ops():
    """A backward's formula gives what torch's kernel gives, whatever its derivative is."""
    found = set()
    functions = {name: (call.function, call.primals()) for name, call in CALLS.items()}
    for function, primals in functions.values():
        inputs = active(primals)
        with Seen() as seen, funcaot.install():
            first_order(function, inputs)(*inputs)
        for rule, args, kwargs, result in seen.calls:
            found.add(rule.op)
            again = rule.formula(*args, **kwargs)
            again = again if isinstance(again, tuple) else (again,)
            result = result if isinstance(result, tuple | list) else (result,)
            for one, other in zip(again, result, strict=True):
                if one is not None:
                    one, other = one.detach(), other.detach()
                    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)  # a float's sixth
    assert len(found) >= 20, found
