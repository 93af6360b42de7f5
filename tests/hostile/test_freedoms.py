"""Each freedom of the hostile backend is used, and a call gives what eager gives all the same."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.hostile import Freedoms, hostile

NONE = Freedoms(
    **{field.name: False for field in dataclasses.fields(Freedoms) if field.name != "seed"}
)
ONE = [dataclasses.replace(NONE, **{name: True}) for name in ("passes", "merges", "layouts")]
ONE += [dataclasses.replace(NONE, **{name: True}) for name in ("packs", "poisons", "views")]
IDS = ["passes", "merges", "layouts", "packs", "poisons", "views"]


def twins(x):
    y = x.sin()
    with torch.no_grad():
        unseen = y.clone()
    return y, y.clone(), unseen, y + torch.zeros_like(y), torch.stack([x])[0], x.clone(), y[1:]


def network(x):
    h = (x @ x.t()).tanh()
    return (h.t() @ h).sum(0), h.softmax(0)


def steps(x):
    state = x.detach().clone()
    state[1:] = state[:-1].clone()
    return state, state.clone(), x * state


@pytest.mark.parametrize("function", [twins, network, steps], ids=lambda value: value.__name__)
@pytest.mark.parametrize("freedoms", [*ONE, Freedoms()], ids=[*IDS, "default"])
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_shows(function, freedoms, seed):
    compiled = funcaot.compile(function, backend=hostile(dataclasses.replace(freedoms, seed=seed)))
    for scale in (1.0, 0.5):
        x = torch.linspace(-1, scale, 12, dtype=torch.float64).view(3, 4).requires_grad_()
        found, wanted = compiled(x), function(x)
        assert_close(found, wanted)
        for mine, oracle in zip(found, wanted, strict=True):
            assert mine.stride() == oracle.stride()
            assert mine.storage_offset() == oracle.storage_offset()
            assert mine.requires_grad == oracle.requires_grad
        storages = [[y.untyped_storage()._cdata for y in made] for made in (found, wanted)]
        ours, eager = ([cdata.index(item) for item in cdata] for cdata in storages)
        assert ours == eager
        outputs = [[y for y in made if y.requires_grad] for made in (found, wanted)]
        mine, oracle = (torch.autograd.grad([(y * y).sum() for y in ys], x) for ys in outputs)
        assert_close(mine, oracle)
        for y in found:
            with torch.no_grad():
                y.mul_(2)


def raw_results(freedoms, function, *examples):
    """What the backend itself returns for a graph, before the contract is kept."""
    seen = []
    compiler = hostile(freedoms)

    def compile_and_watch(module, inputs, kind):
        run = compiler.compile(module, inputs, kind)

        def watched(operands):
            seen.append((list(operands), run(operands)))
            return seen[-1][1]

        return watched

    watching = dataclasses.replace(compiler, compile=compile_and_watch)
    funcaot.compile(function, backend=watching)(*examples)
    return seen


def test_results_become_one_object_and_inputs():
    x = torch.ones(3)
    seen = [raw_results(Freedoms(packs=False, seed=seed), twins, x) for seed in range(4)]
    made = [[id(value) for value in results] for runs in seen for _, results in runs]
    assert any(len(set(objects)) < len(objects) for objects in made)
    given = [(operands, results) for runs in seen for operands, results in runs]
    assert any(a is b for operands, results in given for a in operands for b in results)


def test_results_share_a_storage():
    seen = [raw_results(Freedoms(seed=seed), network, torch.rand(3, 4)) for seed in range(8)]
    storages = [
        [value.untyped_storage()._cdata for value in results]
        for runs in seen
        for _, results in runs
    ]
    assert any(len(set(cdata)) < len(cdata) for cdata in storages)


def test_residuals_lie_as_they_like():
    x = torch.rand(3, 4, requires_grad=True)
    seen = [raw_results(Freedoms(packs=False, seed=seed), network, x) for seed in range(8)]
    strides = {value.stride() for runs in seen for _, results in runs for value in results}
    assert len(strides) > 4


def test_the_same_graph_is_treated_alike():
    runs = [raw_results(Freedoms(), network, torch.ones(3, 4)) for _ in range(2)]
    first, second = ([value.stride() for _, made in seen for value in made] for seen in runs)
    assert first == second


def test_results_begin_where_eagers_do():
    def tail(x):
        return (x * 2)[1:].clone(), (x * 3)[1:], x.sum()

    def elsewhere(module, inputs):
        def run(operands):
            made = module(*operands)
            pools = [torch.zeros(value.numel() + 7) for value in made]
            return [
                pool.as_strided(value.shape, value.stride(), 7).copy_(value)
                for pool, value in zip(pools, made, strict=True)
            ]

        run._boxed_call = True
        return run

    compiled = funcaot.compile(tail, backend=elsewhere)
    for x in (torch.ones(4), torch.arange(4.0), torch.arange(4.0, requires_grad=True)):
        found, wanted = compiled(x), tail(x)
        assert_close(found, wanted)
        assert [y.storage_offset() for y in found] == [y.storage_offset() for y in wanted]
        for y in found:
            y.mul_(2)
