"""Each collective of torch in a compiled function, against eager: values, writes, derivatives."""

import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import funcaot
from tests.distributed.collectives import table
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER

BACKENDS = {"hostile": COMPILER, "inductor": "inductor"}
SIZES = (4, 6, 2, 4)


def _listed(results) -> list[torch.Tensor]:
    """What a function returned, once it is there: eager's functional collectives don't wait."""
    listed = [results] if isinstance(results, torch.Tensor) else list(results)
    return [each.wait() if hasattr(each, "trigger_wait") else each for each in listed]


def _inputs(step: int, rows: int, *, needed: bool) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(2 * step + dist.get_rank())
    return tuple(torch.randn(rows, 3, generator=made).requires_grad_(needed) for _ in range(2))


def _values(function, step, group, *flags):
    x, w = _inputs(step, SIZES[step], needed=False)
    results = _listed(function(x, w, group, *flags))
    strides = [result.stride() for result in results]
    return results, strides, (x, w), (x._version, w._version)


def _derivatives(function, step, group, *flags):
    x, w = _inputs(step, SIZES[step], needed=True)
    if function.__name__ == "all_reduce_argument":
        x = x.detach()
    operands = [each for each in (x, w) if each.requires_grad]
    results = _listed(function(x, w, group, *flags))
    found = [[result.detach().clone() for result in results], [r.requires_grad for r in results]]
    value = sum((result.sin().sum() for result in results), torch.zeros(()))
    for order in range(2):
        if not value.requires_grad:
            break
        again = order == 0
        gradients = torch.autograd.grad(value, operands, create_graph=again, allow_unused=True)
        found.append([None if each is None else each.detach() for each in gradients])
        value = sum((g.pow(2).sum() for g in gradients if g is not None), torch.zeros(()))
    return found


def _outcome(asked, *arguments):
    """What came out, or which error; errors of this table come before a rank waits."""
    try:
        return asked(*arguments)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def _compare(asked, functions, backend, *flags) -> None:
    warnings.simplefilter("ignore")
    other = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    for function in functions:
        compiled = funcaot.compile(function, backend=BACKENDS[backend])
        for group in (dist.group.WORLD, other):
            for step in range(len(SIZES)):
                expected = _outcome(asked, function, step, group, *flags)
                found = _outcome(asked, compiled, step, group, *flags)
                if isinstance(expected, str):
                    assert found == expected, (function.__name__, found, expected)
                    continue
                where = f"{function.__name__}, call {step}: "
                told = lambda text, where=where: where + text  # noqa: E731
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=told)
        assert len(compiled.entries) <= 6, function.__name__


def _write_all(backend, later) -> None:
    _compare(_values, table.WRITING, backend, later)


def _write_and_differentiate_all(backend) -> None:
    left_out = (*table.EAGER_FAILS_BACKWARD, *table.RECORDED_BY_GLOO)
    _compare(_derivatives, [each for each in table.WRITING if each not in left_out], backend)


def _compute_all(backend) -> None:
    _compare(_values, table.DIFFERENTIABLE, backend)


def _differentiate_all(backend) -> None:
    functions = [each for each in table.DIFFERENTIABLE if each not in table.EAGER_FAILS_BACKWARD]
    _compare(_derivatives, functions, backend)


_PARTS = {
    "writes": (_write_all, False),
    "writes, waited for": (_write_all, True),
    "derivatives beside writes": (_write_and_differentiate_all,),
    "values": (_compute_all,),
    "derivatives": (_differentiate_all,),
}


# Minutes each; derivatives of fewer are in test_collectives.
_LONG = ("writes, waited for", "derivatives")


@pytest.mark.parametrize(
    "part", [pytest.param(each, marks=[pytest.mark.long] * (each in _LONG)) for each in _PARTS]
)
def test_on_the_hostile_backend(ranks: Ranks, part):
    function, *flags = _PARTS[part]
    ranks.run(function, "hostile", *flags, deadline=300)


@pytest.mark.long
@pytest.mark.parametrize("part", _PARTS)
def test_on_inductor(ranks: Ranks, part):
    function, *flags = _PARTS[part]
    ranks.run(function, "inductor", *flags, deadline=1200)


def _refuse_all() -> None:
    for function, texts in table.REFUSED.items():
        x, w = _inputs(0, 4, needed=False)
        with pytest.raises(funcaot.errors.UnsupportedError) as error:
            funcaot.compile(function, backend=COMPILER)(x, w, dist.group.WORLD)
        assert any(text in str(error.value) for text in texts), str(error.value)


def test_refused_by_name(ranks: Ranks):
    ranks.run(_refuse_all)


def _refuse_what_gloo_records() -> None:
    for function, text in table.RECORDED_BY_GLOO.items():
        compiled = funcaot.compile(function, backend=COMPILER)
        x, w = _inputs(0, 4, needed=True)
        with pytest.raises(funcaot.errors.UnsupportedError, match=text):
            compiled(x, w, dist.group.WORLD)
        found = _listed(compiled(x.detach(), w.detach(), dist.group.WORLD))
        expected = _listed(function(x.detach(), w.detach(), dist.group.WORLD))
        torch.testing.assert_close(found, expected)


def test_what_gloo_records_is_refused_where_a_gradient_could_come(ranks: Ranks):
    ranks.run(_refuse_what_gloo_records)
