"""Every Function of torch's database, through the operator, against torch or a loop of it."""

from __future__ import annotations

import pytest
import torch
from torch.func import functionalize, jvp, vjp, vmap
from torch.testing._internal.autograd_function_db import autograd_function_db

import funcaot


def differentiable(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Case:
    """One Function on one sample, as a function of its floating-point tensors only."""

    def __init__(self, op):
        sample = next(iter(op.sample_inputs_func(op, "cpu", torch.float64, False)))
        self.values = (sample.input, *sample.args)
        self.where = [i for i, v in enumerate(self.values) if differentiable(v)]
        self.primals = tuple(self.values[i].detach() for i in self.where)
        self.op = op
        self.composable = op.name != "NumpyCubeNotComposableAutogradFunction"

    def __call__(self, *primals):
        values = list(self.values)
        for i, primal in zip(self.where, primals, strict=True):
            values[i] = primal
        out = self.op.op(*values)
        out = out if isinstance(out, tuple) else (out,)
        return tuple(o for o in out if differentiable(o))


CASES = {op.name.removesuffix("AutogradFunction"): op for op in autograd_function_db}


@pytest.fixture(params=sorted(CASES))
def case(request):
    return Case(CASES[request.param])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def like(values, seed):
    g = generator(seed)
    return tuple(torch.rand(v.shape, dtype=v.dtype, generator=g) + 0.5 for v in values)


def batched(values, size=3):
    return tuple(torch.stack([v + 0.1 * k for k in range(size)]) for v in values)


def eager_vjp(case, primals, cotangents):
    leaves = [p.clone().requires_grad_() for p in primals]
    return torch.autograd.grad(case(*leaves), leaves, cotangents)


def eager_vjp_of_vjp(case, primals, cotangents, seconds):
    leaves = [p.clone().requires_grad_() for p in primals]
    seeds = [c.clone().requires_grad_() for c in cotangents]
    first = torch.autograd.grad(case(*leaves), leaves, seeds, create_graph=True)
    wanted = [f for f in first if f.requires_grad]
    given = [s for f, s in zip(first, seconds, strict=True) if f.requires_grad]
    result = torch.autograd.grad(wanted, leaves + seeds, given, allow_unused=True)
    return tuple(
        torch.zeros_like(x) if r is None else r for r, x in zip(result, leaves + seeds, strict=True)
    )


def eager_jvp(case, primals, tangents):
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        out = case(*[forward_ad.make_dual(p, t) for p, t in zip(primals, tangents, strict=True)])
        return tuple(forward_ad.unpack_dual(o).tangent for o in out)


def loop(function, *arguments, size=3):
    """Apply per example and stack: the oracle of vmap."""
    rows = [function(*[tuple(v[k] for v in group) for group in arguments]) for k in range(size)]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def same(actual, expected):
    torch.testing.assert_close(tuple(actual), tuple(expected))


def pullback(case, primals, cotangents):
    return vjp(case, *primals)[1](cotangents)


def pullback_of_pullback(case, primals, cotangents, seconds):
    n = len(primals)

    def first(*values):
        return pullback(case, values[:n], values[n:])

    return vjp(first, *primals, *cotangents)[1](seconds)


RUN, ORACLE = {}, {}


def run(function):
    RUN[function.__name__.removeprefix("run_")] = function
    return function


def oracle(function):
    ORACLE[function.__name__.removeprefix("oracle_")] = function
    return function


def seeds(case):
    return like(case(*case.primals), 1)


@run
def run_grad(case, wrap):
    def total(*primals):
        return sum(o.sum() for o in case(*primals))

    argnums = tuple(range(len(case.primals)))
    return wrap(torch.func.grad(total, argnums=argnums))(*case.primals)


@oracle
def oracle_grad(case):
    return eager_vjp(case, case.primals, tuple(torch.ones_like(s) for s in seeds(case)))


@run
def run_vjp(case, wrap):
    return wrap(lambda p, c: pullback(case, p, c))(case.primals, seeds(case))


@oracle
def oracle_vjp(case):
    return eager_vjp(case, case.primals, seeds(case))


@run
def run_vjp_of_vjp(case, wrap):
    arguments = case.primals, seeds(case), like(case.primals, 2)
    return wrap(lambda *a: pullback_of_pullback(case, *a))(*arguments)


@oracle
def oracle_vjp_of_vjp(case):
    return eager_vjp_of_vjp(case, case.primals, seeds(case), like(case.primals, 2))


@run
def run_vmap(case, wrap):
    return wrap(vmap(case))(*batched(case.primals))


@oracle
def oracle_vmap(case):
    return loop(lambda p: case(*p), batched(case.primals))


@run
def run_vmap_of_vjp(case, wrap):
    arguments = batched(case.primals), batched(seeds(case))
    return wrap(vmap(lambda p, c: pullback(case, p, c)))(*arguments)


@run
def run_vjp_of_vmap(case, wrap):
    arguments = batched(case.primals), batched(seeds(case))
    return wrap(lambda p, c: vjp(vmap(case), *p)[1](c))(*arguments)


@oracle
def oracle_vmap_of_vjp(case):
    return loop(lambda p, c: eager_vjp(case, p, c), batched(case.primals), batched(seeds(case)))


ORACLE["vjp_of_vmap"] = oracle_vmap_of_vjp


@run
def run_jvp(case, wrap):
    return wrap(lambda p, t: jvp(case, p, t)[1])(case.primals, like(case.primals, 3))


@oracle
def oracle_jvp(case):
    return eager_jvp(case, case.primals, like(case.primals, 3))


@pytest.mark.parametrize("functional", [False, True], ids=["plain", "functionalize"])
@pytest.mark.parametrize("name", sorted(RUN))
def test_database(case, name, functional):
    wrap = functionalize if functional else lambda f: f
    if not case.composable and name not in ("grad", "vjp"):
        # once_differentiable, and keeps a NumPy array of one example on ctx
        with funcaot.install(), pytest.raises(RuntimeError):
            RUN[name](case, wrap)
        return
    with funcaot.install():
        result = RUN[name](case, wrap)
    same(result, ORACLE[name](case))
