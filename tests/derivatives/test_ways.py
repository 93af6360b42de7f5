"""Every way to a derivative of orders one to three, of the forms that are in use.

Finite differences of the order below are the oracle, so nothing here relies on another derivative.
"""

import pytest

import funcaot
from funcaot.derivatives.table import derivatives
from tests.derivatives.used import FORMS
from tests.derivatives.ways import WAYS, attempt, derivative, difference, loss_of

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
_IN_PLACE = "modified by an inplace operation"
_ZEROS = "ZeroTensors are immutable"
_VALUES = "reads a value|Cannot access data pointer"
# What torch's own formulas raise, uncompiled; all of them loud.
GAPS = {
    **{(name, "rfr"): _ZEROS for name in FORMS if name.startswith("grid_sample")},
    **{
        (name, "rfr"): _IN_PLACE
        for name in ("weight_norm_between", "cosine_similarity", "cdist_of_many_rows")
    },
    ("conv_transpose2d", "eee"): "output_padding is not supported",
}
# And what a compiled function refuses.
COMPILED_GAPS = {
    **{("scatter_reduce_prod", way): _VALUES for order in (2, 3) for way in WAYS[order]},
    **{("conv_transpose2d", way): "output_padding" for order in (2, 3) for way in WAYS[order]},
}
FAST = ("weight_norm", "weight_norm_last", "cdist_of_many_rows", "glu", "scatter_reduce_prod")


def as_tuple(function):
    def run(*values):
        found = function(*values)
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    return run


def check(name, made, gaps):
    """``made`` is the same function, differentiated by every way."""
    function, primals = FORMS[name]
    function = as_tuple(function)
    trusted = {}
    for order in (1, 2, 3):

        def below(*values, order=order):
            with funcaot.install():
                if order == 1:
                    return loss_of(function)(*values)
                return derivative(trusted[order - 1], function, values)

        wanted = difference(below, primals, order - 1)
        assert wanted is not None, f"differences of order {order} say nothing"
        for way in WAYS[order]:
            with funcaot.install():
                plain = attempt(way, function, primals)
            if plain.agrees(wanted):
                trusted.setdefault(order, way)
            found = plain if made is None else attempt(way, made(function), primals)
            reason = gaps.get((name, way))
            if reason is not None and found.value is None:
                assert any(text in found.error for text in reason.split("|")), found
                continue
            assert found.agrees(wanted), (way, wanted, str(found))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in FORMS
])  # fmt: skip
def test_uncompiled(name):
    check(name, None, GAPS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", FORMS)
def test_compiled(name, backend):
    check(name, lambda function: funcaot.compile(function, backend=backend), COMPILED_GAPS)


def test_at_least_thirty_operators_have_rules():
    """Of torch's own ops, not those of attention that are ours, nor special functions."""
    found = {
        rule.op.name().split(".")[0].removesuffix("_backward").removesuffix("_forward")
        for rule in derivatives()
        if rule.op.namespace == "aten" and "special_" not in rule.op.name()
    }
    assert len(found) >= 30, sorted(found)
