"""Globals of functions of another module, which a program reads and changes: never stale.

A library is made twice, for eager and for the compiled function. Its function is reached in many
ways, runs in the first call or only later, and what it reads is changed between calls.
"""

import concurrent.futures
import functools
import sys
import threading
import types
import weakref

import pytest
import torch

import funcaot
from funcaot.aot.closure.walk import Walk
from funcaot.errors import CaptureWarning, UnsupportedError

LIBRARY = """
import torch

FACTOR = 2.0
MODE = "plus"
TABLE = {"scale": 3.0}
LOG = []
COUNT = 0
WEIGHT = torch.ones(3)


def helper(x):
    return x + 1


def inner(x):
    global COUNT
    COUNT += 1
    LOG.append(len(LOG))
    y = helper(x) * FACTOR
    return y + TABLE["scale"] * WEIGHT if MODE == "plus" else y - WEIGHT


def hook(module, args, result):
    return inner(result)


class Base:
    def method(self, x):
        return inner(x)

    @classmethod
    def of_class(cls, x):
        return inner(x)

    @staticmethod
    def static(x):
        return inner(x)

    @property
    def prop(self):
        return inner

    def __call__(self, x):
        return inner(x)

    def __getattr__(self, name):
        if name == "asked":
            return inner
        raise AttributeError(name)

    def __enter__(self):
        return inner

    def __exit__(self, *error):
        pass

    def __len__(self):
        return int(inner(torch.zeros(3)).numel())


class Derived(Base):
    def method(self, x):
        return super().method(x)


def generate(x):
    yield inner(x)


def make():
    def made(x):
        return inner(x)

    return made


def unused(x):
    return x * UNUSED


UNUSED = torch.ones(3)
"""


def decorated(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x)

    return wrapper


class Registry:
    def __init__(self, function):
        self.functions = {"inner": [function]}

    def run(self, x):
        return self.functions["inner"][0](x)


def by_local_import(lib):
    space = {"__name__": f"user_of_{lib.__name__}"}
    code = f"def run(x):\n    import {lib.__name__}\n    return {lib.__name__}.inner(x)"
    exec(code, space)
    return space["run"]


def by_default(lib):
    def run(x, function=lib.inner):
        return function(x)

    return run


def by_hook(lib):
    module = torch.nn.Identity()
    module.register_forward_hook(lib.hook)
    return module


def by_context(lib):
    def run(x):
        with thing as function:
            return function(x)

    thing = lib.Base()
    return run


def by_weak_reference(lib):
    reference = weakref.ref(lib.inner)
    return lambda x: reference()(x)


def by_key(lib):
    def run(x):
        found = []
        sorted([1], key=lambda _: found.append(lib.inner(x)) or 0)
        return found[0]

    return run


def by_distance(lib):
    def distance(a, b):
        return lib.inner(a) - b

    def run(x):
        zero = torch.zeros(3)
        return torch.nn.functional.triplet_margin_with_distance_loss(
            x, zero, zero - 1, distance_function=distance, reduction="none"
        )

    return run


WAYS = {
    "module": lambda lib: lambda x: lib.inner(x),
    "function": lambda lib: (lambda function: lambda x: function(x))(lib.inner),
    "method": lambda lib: lib.Base().method,
    "inherited": lambda lib: lib.Derived().method,
    "class method": lambda lib: lib.Base.of_class,
    "static method": lambda lib: lambda x, base=lib.Base: base.static(x),
    "property": lambda lib: (lambda thing: lambda x: thing.prop(x))(lib.Base()),
    "asked attribute": lambda lib: (lambda thing: lambda x: thing.asked(x))(lib.Base()),
    "called object": lambda lib: (lambda thing: lambda x: thing(x))(lib.Base()),
    "special method": lambda lib: (lambda thing: lambda x: x * len(thing))(lib.Base()),
    "context": by_context,
    "partial": lambda lib: functools.partial(functools.partial(lib.inner)),
    "decorator": lambda lib: decorated(decorated(lib.inner)),
    "registry": lambda lib: Registry(lib.inner).run,
    "closure": lambda lib: lib.make(),
    "default": by_default,
    "by name": lambda lib: lambda x: getattr(lib, "".join(["inn", "er"]))(x),
    "local import": by_local_import,
    "hook": by_hook,
    "generator": lambda lib: lambda x: next(lib.generate(x)),
    "map": lambda lib: lambda x: next(map(lib.inner, [x])),
    "weak reference": by_weak_reference,
    "key": by_key,
    "distance": by_distance,
}


def set_factor(lib):
    lib.FACTOR += 1.5


def set_mode(lib):
    lib.MODE = "minus" if lib.MODE == "plus" else "plus"


def set_item(lib):
    lib.TABLE["scale"] += 2.0


def set_tensor(lib):
    lib.WEIGHT = lib.WEIGHT * 2


def write_tensor(lib):
    lib.WEIGHT.add_(1)


def replace_helper(lib):
    factor = lib.FACTOR
    lib.helper = lambda x: x * factor


def set_count(lib):
    lib.COUNT += 10


def replace_log(lib):
    lib.LOG = [7]


CHANGES = [set_factor, set_mode, set_item, set_tensor, write_tensor, replace_helper]
CHANGES += [set_count, replace_log]


def made(name):
    lib = types.ModuleType(name)
    sys.modules[name] = lib
    exec(LIBRARY, vars(lib))
    return lib


def story(way, *, early, compile_):
    """What calls give and leave, with a change after each."""
    name = "library_of_a_test"
    lib, switch, told = made(name), [early], []
    try:
        inside = WAYS[way](lib)

        def function(x):
            return inside(x) if switch[0] else x * 2

        run = compile_(function)
        for change in [None, None, *CHANGES, None]:
            if change is not None:
                change(lib)
                switch[0] = True
            result = run(torch.tensor([1.0, 2.0, 3.0]))
            told.append((result.tolist(), lib.COUNT, [*lib.LOG], lib.WEIGHT.tolist()))
        return told
    finally:
        del sys.modules[name]


EARLY = [pytest.param(True, id="at once", marks=pytest.mark.slow), pytest.param(False, id="later")]


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_another_module(way, early):
    expected = story(way, early=early, compile_=lambda function: function)
    found = story(way, early=early, compile_=lambda f: funcaot.compile(f, backend="eager"))
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_another_module_on_the_default_backend(way):
    expected = story(way, early=False, compile_=lambda function: function)
    assert story(way, early=False, compile_=funcaot.compile) == expected


# --- globals that code reaches without calling a function that has them ---------------------------


def by_text(lib):
    def run(x):
        space = lib.inner.__globals__
        space["COUNT"] += 1
        space["NEW"] = space.get("NEW", 0) + 1
        return x * space["COUNT"] + space["NEW"]

    return run


def by_name_of_globals(lib):
    def run(x):
        space = getattr(lib.unused, "__globals__")  # noqa: B009
        space["COUNT"] = space["COUNT"] + 2
        return x * space["COUNT"]

    return run


def by_import_inside(lib):
    space = {"__name__": f"user_of_{lib.__name__}"}
    name = lib.__name__
    body = f"import {name}\n    {name}.COUNT += 1\n    {name}.LOG.append({name}.COUNT)"
    exec(f"def run(x):\n    {body}\n    return x * {name}.COUNT", space)
    return space["run"]


def by_module(lib):
    def run(x):
        lib.COUNT += 1
        lib.NEW = lib.COUNT
        return lib.inner(x) * lib.NEW

    return run


def by_private_attribute(lib):
    class Counter:
        def __init__(self):
            self.n = 0

    module = torch.nn.Identity()
    module._counter = Counter()

    def run(x):
        module._counter.n += 1
        lib.COUNT = module._counter.n
        return x * module._counter.n

    return run


OTHERS = [by_text, by_name_of_globals, by_import_inside, by_module, by_private_attribute]


@pytest.mark.parametrize("make", OTHERS)
def test_reached_otherwise(make):
    told = []
    for compile_ in (lambda f: f, lambda f: funcaot.compile(f, backend="eager")):
        lib = made(name := "another_library_of_a_test")
        try:
            run = compile_(make(lib))
            told.append([])
            for step in range(6):
                if step == 4:
                    lib.COUNT += 5
                result = run(torch.tensor([1.0, 2.0, 3.0]))
                told[-1].append((result.tolist(), lib.COUNT, [*lib.LOG], vars(lib).get("NEW")))
        finally:
            del sys.modules[name]
    assert told[0] == told[1]


def start(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


POOL = concurrent.futures.ThreadPoolExecutor(1)


@pytest.mark.parametrize("run_there", [start, lambda f: POOL.submit(f).result()])
def test_what_another_thread_runs_is_refused(run_there):
    lib = made(name := "a_library_with_threads")
    del sys.modules[name]

    def count():
        lib.COUNT += 1
        lib.LOG.append(lib.COUNT)

    def function(x):
        run_there(count)
        return x * 2

    compiled = funcaot.compile(function, backend="eager")
    with pytest.raises(UnsupportedError, match="another thread"):
        compiled(torch.ones(3))
    assert (lib.COUNT, lib.LOG) == (0, [])
    plain = funcaot.compile(function, backend="eager", fullgraph=False)
    with pytest.warns(CaptureWarning, match="another thread"):
        plain(torch.ones(3))
    assert (lib.COUNT, lib.LOG) == (1, [1])


def test_what_does_not_run_is_not_walked():
    lines = ["DATA_{0} = [[{0}]]", "def f_{0}(x):", "    return f_{1}(x), DATA_{0}", ""]
    code = "\n".join(line.format(n, n + 1) for n in range(300) for line in lines)
    space = {"__name__": "a_library_that_is_a_chain"}
    exec(code, space)
    walk = Walk((space["f_0"],), waits=True)
    walk.go()
    assert len(walk.found.objects) < 10
    for n in (0, 1, 2):
        walk.add_code(space[f"f_{n}"].__code__, space)
        assert id(space[f"DATA_{n}"]) in walk.found.objects
    assert len(walk.found.objects) < 20
    walk = Walk((space["f_0"],))
    walk.go()
    assert len(walk.found.objects) > 600
