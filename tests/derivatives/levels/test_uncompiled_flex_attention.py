"""Flex attention that nobody compiles, inside of ``funcaot.install``."""

import pytest
import torch
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

import funcaot
from tests.derivatives.attention import ASKED
from tests.derivatives.test_flex_attention import (
    COLUMNS,
    KINDS,
    SLOPES,
    TABLE,
    agree,
    attention,
    by_the_operator,
    capped,
    first_order,
    listed,
    operands,
    written_out,
)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")
FAST = {("plain", "jvp"), ("biased", "second"), ("documents", "vmap_of_second")}


def cases():
    for kind in KINDS:
        for asked in ASKED:
            marks = [] if (kind, asked) in FAST else [pytest.mark.slow]
            yield pytest.param(kind, asked, marks=marks, id=f"{kind}-{asked}")


@pytest.mark.parametrize(("kind", "asked"), list(cases()))
def test_any_order(kind, asked):
    tensors, keywords, change = KINDS[kind]
    with funcaot.install():
        found = ASKED[asked](attention(keywords), tensors)
    wanted = ASKED[asked](written_out(keywords, change), tensors)
    agree(listed(found), listed(wanted), 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_first_order_is_that_of_the_operator(kind):
    tensors, keywords, _ = KINDS[kind]
    with funcaot.install():
        found = first_order(attention(keywords), tensors)
    wanted = by_the_operator(first_order, attention(keywords), tensors)
    agree(found, wanted)
    assert found[0].stride() == wanted[0].stride()


def with_statistics(query, key, value):
    output, aux = flex_attention(
        query, key, value, score_mod=capped, return_aux=AuxRequest(lse=True)
    )
    return output * aux.lse.unsqueeze(-1)


def test_statistics():
    with funcaot.install():
        found = first_order(with_statistics, operands())
    agree(found, by_the_operator(first_order, with_statistics, operands()))


def test_what_nobody_differentiates_is_torch_s():
    """The operator, by way of torch's compiler; and torch's own state and errors afterwards."""
    tensors, keywords, _ = KINDS["biased"]
    wanted = attention(keywords)(*tensors)
    with funcaot.install():
        torch.testing.assert_close(attention(keywords)(*tensors), wanted)
        with torch.no_grad():
            torch.testing.assert_close(attention(keywords)(*tensors), wanted, rtol=0, atol=0)
        inner = torch.compile(flex_attention, backend="eager")
        torch.testing.assert_close(inner(*tensors, score_mod=capped), with_capped(tensors))
    torch.testing.assert_close(attention(keywords)(*tensors), wanted, rtol=0, atol=0)
    assert module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False
    assert not hasattr(module.flex_attention_hop.__class__.__call__, "original")
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(*(x.clone().requires_grad_() for x in tensors))


def with_capped(tensors):
    return flex_attention(*tensors, score_mod=capped)


def test_installs_nest():
    tensors, keywords, _ = KINDS["plain"]
    with funcaot.install():
        with funcaot.install():
            inner = first_order(attention(keywords), tensors)
        outer = first_order(attention(keywords), tensors)
        compiled = funcaot.compile(attention(keywords), backend="eager")
        agree(first_order(compiled, tensors), outer)
    agree(inner, outer)


def test_tables_that_a_score_is_changed_by():
    """What the score's function closes over has derivatives of its own."""
    tensors = [*operands(), SLOPES, TABLE[0]]

    def run(query, key, value, slopes, table):
        def changed(score, b, h, i, j):
            return score * slopes[h] + table[h, i - j + COLUMNS]

        return flex_attention(query, key, value, score_mod=changed)

    def written(query, key, value, slopes, table):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        _, heads, rows, columns = scores.shape
        h, i, j = torch.meshgrid(*(torch.arange(n) for n in (heads, rows, columns)), indexing="ij")
        scores = scores * slopes[h] + table[h, i - j + COLUMNS]
        return scores.softmax(-1) @ value

    for asked in ("first", "second", "forward_over_reverse"):
        with funcaot.install():
            found = ASKED[asked](run, tensors)
        agree(listed(found), listed(ASKED[asked](written, tensors)), 1e-8)

    query, key, value = operands()
    slopes = SLOPES.clone().requires_grad_()
    table = TABLE[0].clone().requires_grad_()
    with funcaot.install():
        first = second_of(run(query, key, value, slopes, table), slopes)
    agree([first], [second_of(written(query, key, value, slopes, table), slopes)], 1e-8)


def second_of(output, leaf):
    (gradient,) = torch.autograd.grad((output * 1.3).sin().sum(), leaf, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), leaf)[0]
