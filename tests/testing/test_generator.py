"""The records, the table and the generator themselves."""

import pytest
import torch

from funcaot.errors import FuncaotError
from funcaot.testing import Limitation, Sample, opinfo
from funcaot.testing.composition import chosen, is_possible, pairs, parse, singles
from funcaot.testing.database import FUNCTIONS, by_name
from funcaot.testing.derivatives import EagerAutograd, FiniteDifferences
from funcaot.testing.generator import Case, Mismatch, fast_cases
from funcaot.testing.parametrize import parameters
from funcaot.testing.transforms import TABLE


def test_the_database_is_large_and_names_are_distinct():
    names = [info.name for info in FUNCTIONS]
    assert len(names) >= 100
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("info", FUNCTIONS, ids=lambda info: info.name)
def test_every_entry_has_a_reference_features_or_samples(info):
    samples = list(info.sample_inputs("cpu", info.dtypes[0]))
    assert samples
    assert info.ref is not None
    assert len({sample.name for sample in samples}) == len(samples)
    assert all(item.reason for item in info.limitations)


def test_compositions_cover_depth_two_three_and_four():
    assert len(TABLE) >= 20
    assert len(list(pairs())) >= 100
    assert {len(chain.transforms) for chain in chosen()} == {2, 3, 4}
    assert all(is_possible(chain) for chain in [*singles(), *chosen()])


def test_together_the_functions_try_every_composition():
    tried = {case.composition.name for case in fast_cases(FUNCTIONS)}
    wanted = {chain.name for chain in [*pairs(), *chosen()]}
    assert wanted <= tried


def test_ids_read_like_sentences():
    case = Case(by_name("NumpyMultiply"), parse("vmap_of_grad"), "both")
    assert case.id == "NumpyMultiply-vmap_of_grad-both-float64-cpu"


def test_unknown_names_are_refused():
    with pytest.raises(FuncaotError, match="no transform 'vmpa'"):
        parse("vmpa_of_grad")
    with pytest.raises(KeyError, match="NumpySort"):
        by_name("NumpySrot")


def test_limitations_are_strict_expected_failures():
    samples = [torch.ones(2, dtype=torch.float64, requires_grad=True)]
    info = opinfo(torch.sin, samples, limitations=(Limitation("vmap*", "not yet"),))
    (made,) = parameters([Case(info, parse("vmap_of_grad"), "sample0")])
    (mark,) = made.marks
    assert mark.name == "xfail"
    assert mark.kwargs == {"reason": "not yet", "strict": True}
    assert info.limitation_for("grad", "sample0") is None


def test_a_missing_rule_must_be_refused():
    info = by_name("BackwardOnly")
    Case(info, parse("jvp"), "matrix").run()
    sine = opinfo(torch.sin, [torch.ones(2, requires_grad=True)], supports_vmap=False)
    with pytest.raises(Mismatch, match="passes, although sin has no rule for vmap"):
        Case(sine, parse("vmap"), "sample0", torch.float32).run()


def test_a_composition_may_get_by_without_a_rule():
    assert Case(by_name("JvpOnly"), parse("grad_of_jvp"), "matrix").run() is None
    assert Case(by_name("BackwardOnly"), parse("jvp_of_compile"), "matrix").run() is not None


def test_where_a_rule_is_missing_no_limitation_is_expected():
    samples = [torch.ones(2, dtype=torch.float64, requires_grad=True)]
    known = {"limitations": (Limitation("vmap", "not yet"),), "supports_vmap": False}
    (made,) = parameters([Case(opinfo(torch.sin, samples, **known), parse("vmap"), "sample0")])
    assert not made.marks


def test_a_wrong_reference_is_a_mismatch():
    samples = [Sample(torch.ones(2, dtype=torch.float64, requires_grad=True))]
    info = opinfo(torch.sin, samples, ref=torch.cos)
    with pytest.raises(Mismatch, match=r"sin-call-sample-float64-cpu: result 0"):
        Case(info, parse("call"), "sample").run()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_both_oracles_agree(order):
    x = torch.tensor([0.3, 0.9], dtype=torch.float64)
    results = []
    for derivatives in (EagerAutograd(), FiniteDifferences()):

        def function(x):
            return (x.sin() * x.exp(),)

        for _ in range(order):

            def function(x, inner=function, derivatives=derivatives):
                ones = [torch.ones_like(x)]
                return derivatives.vjp(inner, (x,), (0,), ones)[1]

        results.append(function(x)[0].detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)
