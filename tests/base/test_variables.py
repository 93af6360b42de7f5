"""Of environment variables, those are compared that code asks for, whoever sets others."""

import collections
import copy
import functools
import os
import string

import pytest
import torch

import funcaot
from tests.aot.saved.reloading import is_loaded, misses

# What reads one by its name.
BY_NAME = [
    "float(env['ASKED'])",
    "float(os.getenv('ASKED')) + len(os.getenv('NEW_ASKED', ''))",
    "float('%(ASKED)s' % env) + ('NEW_ASKED' in env)",
    "float(os.path.expandvars('$ASKED')) + float(os.environb[b'ASKED'])",
    "float(collections.ChainMap({}, env).get('ASKED')) + float(bound('ASKED'))",
]
MORE_BY_NAME = [
    "float('{ASKED}'.format_map(env))",
    "float(string.Template('$ASKED').substitute(env))",
    "float(collections.ChainMap(env)['ASKED'])",
    "float(getattr(env, '__getitem__')('ASKED'))",
    "float(held['env']['ASKED'])",
    "float(part('ASKED')) + ('NEW_ASKED' not in env.keys())",
    "float(env['ASKED']) + (('NEW_ASKED', '1') in env.items())",
    "float(os.getenvb(b'ASKED')) + len(os.getenvb(b'NEW_ASKED', b''))",
    "isinstance(env, dict) + hasattr(env, 'get')",
    "len(os.path.expanduser('~'))",
]
# What reads all of them.
ALL = [
    "len(env)",
    "len(dict(env)) + float({**env}['ASKED'])",
    "sum(name == 'UNASKED' for name in env)",
    "(2 if '1' in env.values() else 3) + (env == before)",
    "len(copy.copy(env)) + len(env._data)",
]
MORE_ALL = [
    "len([*env])",
    "len(sorted(env)) + len(set(env))",
    "len(str(env))",
    "len(env.copy())",
    "len(env | {})",
    "len({} | env)",
    "len(env.items())",
    "len([*map(len, env)])",
    "len(collections.ChainMap(env))",
    "len(vars(env)['_data'])",
    "len(getattr(env, '_da' + 'ta'))",
    "len(copy.deepcopy(env))",
    "len(env.__getstate__()['_data'])",
    "len(os.environb)",
    "float('{ASKED}'.format(**env))",
]


def long(cases):
    return [pytest.param(case, marks=(pytest.mark.slow, pytest.mark.long)) for case in cases]


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """One variable; what a test sets beside it is gone afterwards."""
    monkeypatch.setenv("ASKED", "2")
    for name in ("NEW_ASKED", "UNASKED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def target_that_reads(read):
    env = os.environ
    known = {
        "os": os,
        "env": env,
        "before": dict(env),
        "held": {"env": env},
        "bound": env.get,
        "part": functools.partial(env.__getitem__),
        "collections": collections,
        "copy": copy,
        "string": string,
    }
    exec(f"def target(x): return x * ({read})", known)
    return known["target"]


def extra_misses(read, name, values):
    """How many calls are compiled again, one for each value of a variable; all are right."""
    target = target_that_reads(read)
    compiled = funcaot.compile(target, backend="eager")
    x = torch.ones(2)
    compiled(x)
    for value in values:
        os.environ[name] = value
        assert torch.equal(compiled(x), target(x))
    return funcaot.report(compiled).cache_misses - 1


@pytest.mark.parametrize("read", [*BY_NAME, *long(MORE_BY_NAME)])
def test_one_that_is_not_asked_for_is_not_compared(read):
    assert extra_misses(read, "UNASKED", "12") == 0


@pytest.mark.parametrize("name", ["ASKED", "NEW_ASKED"])
@pytest.mark.parametrize("read", [*BY_NAME, *long(MORE_BY_NAME)])
def test_one_that_is_asked_for_is_compared(read, name):
    assert extra_misses(read, name, "3") == (name in read)


@pytest.mark.parametrize("read", [*ALL, *long(MORE_ALL)])
def test_all_are_compared_where_all_are_looked_at(read):
    assert extra_misses(read, "UNASKED", "1") == 1


def inner(x):
    return x * float(os.environ["ASKED"])


def test_one_that_a_function_inside_of_a_function_asks_for():
    compiled_inner = funcaot.compile(inner, backend="eager")

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return compiled_inner(x)

        @staticmethod
        def backward(ctx, grad):
            return grad * float(os.environ["ASKED"])

    compiled = funcaot.compile(lambda x: Scaled.apply(x), backend="eager")
    x = torch.ones(2, requires_grad=True)
    for value in "235":
        os.environ["ASKED"] = value
        found = compiled(x)
        assert torch.equal(found, x * float(value))
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(gradient, torch.full((2,), float(value)))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_step_of_an_optimizer_asks_for_none_that_comes_later(kind):
    model = torch.nn.Linear(2, 2)
    optimizer = kind(model.parameters(), 0.1)

    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = funcaot.compile(step, backend="eager")
    for call in range(5):
        if call == 2:
            before = funcaot.report(compiled).cache_misses
        os.environ["UNASKED"] = str(call)
        compiled(torch.ones(2, 2))
    assert funcaot.report(compiled).cache_misses == before


def test_a_file_says_which_were_asked_for(tmp_path):
    x = torch.ones(2)
    compiled = funcaot.compile(inner, backend="eager")
    compiled(x)
    assert compiled.save(tmp_path / "programs").programs == 1
    for name, value, hit in (("UNASKED", "1", True), ("ASKED", "3", False)):
        os.environ[name] = value
        again = funcaot.compile(inner, backend="eager", artifacts=tmp_path / "programs")
        assert torch.equal(again(x), inner(x))
        assert is_loaded(again) == hit
        assert misses(again) == (not hit)
