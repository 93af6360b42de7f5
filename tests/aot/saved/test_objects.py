"""Named tuples, dataclasses and other objects as arguments and results of programs from a file.

A module stands for the user's code, and is made anew for each world, as another process would make
it. Eager in the same world is the oracle.
"""

import collections
import contextlib
import functools
import sys
import types

import pytest
import torch

import funcaot
from tests.aot.saved.reloading import compiled_function, is_loaded, misses, reloaded

NAME = "objects_of_tests"
SOURCE = """
import collections, dataclasses, typing
import torch

class Out(typing.NamedTuple):
    energy: torch.Tensor
    forces: torch.Tensor
    def total(self):
        return self.energy + self.forces.sum()

Pair = collections.namedtuple("Pair", "a b")

@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    factor: float = 2.0
    @property
    def product(self):
        return self.x * self.y

@dataclasses.dataclass(frozen=True)
class Result:
    loss: torch.Tensor
    count: int = 3

class Slots:
    __slots__ = ("value",)
    def __init__(self, value):
        self.value = value

class Rows(list):
    pass

class Holder:
    def __init__(self, w):
        self.w, self.k = w, 2
    def total(self):
        return (self.w * self.k).sum()

def returns(x): return Out((x**2).sum(), x.sin())
def takes(p): return (p.a * p.b).sum()
def asks(o): return o.total()
def replaces(p): return p._replace(a=p.a.sin())
def takes_class(b): return b.product.sum() * b.factor
def returns_class(x): return Result((x**2).sum())
def nests(x): return {"r": Result(x.sum()), "o": [Out(x.sum(), x.cos())]}
def inside(d): return Result((d["p"].a * d["b"].x).sum(), count=7)
def copies(b): return dataclasses.replace(b, x=b.x.sin())
def twice(x):
    made = Result(x.sum())
    return [made, made]
def slotted(x): return Slots(x.sum())
def rows(x): return Rows([x.sum(), x.sin()])
def ordered(x): return collections.OrderedDict(b=x.sum(), a=x.sin())
def sorts(x): return x.sort(), x.max(0)
def holds(h): return h.total()
def writes(b):
    b.y = b.x.detach() * 2
    return b.x.sum()
LOG = []
def keeps(x):
    LOG.append(Result(x.detach().sum()))
    return x.sum()
"""
GIVEN = {
    "takes": lambda m: m.Pair(tensor(1), tensor(2)),
    "asks": lambda m: m.Out(tensor(1).sum(), tensor(2)),
    "replaces": lambda m: m.Pair(tensor(1), tensor(2)),
    "takes_class": lambda m: m.Batch(tensor(1), tensor(2)),
    "inside": lambda m: {"p": m.Pair(tensor(1), tensor(2)), "b": m.Batch(tensor(3), tensor(4))},
    "copies": lambda m: m.Batch(tensor(1), tensor(2)),
    "holds": lambda m: m.Holder(tensor(1)),
    "writes": lambda m: m.Batch(tensor(1), tensor(2)),
}
FUNCTIONS = [
    *("returns", "takes", "asks", "replaces", "takes_class", "returns_class", "nests", "inside"),
    *("copies", "twice", "slotted", "rows", "ordered", "sorts", "holds", "writes", "keeps"),
]


def tensor(seed):
    generator = torch.Generator().manual_seed(seed)
    made = torch.rand(4, dtype=torch.float64, generator=generator)
    return made.requires_grad_()


@contextlib.contextmanager
def world(source=SOURCE):
    """The user's module, as a process has it."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    try:
        exec(compile(source, f"/users/{NAME}.py", "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[NAME]


def given(module, name):
    return GIVEN.get(name, lambda module: tensor(1))(module)


def parts(value, seen=None):
    """What a value consists of, with the classes and which parts are one object."""
    seen = {} if seen is None else seen
    kind = (type(value).__module__, type(value).__qualname__)
    if isinstance(value, int | float | str):
        return kind, value
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        return kind, value.detach().tolist(), value.requires_grad
    if isinstance(value, dict):
        return kind, [(key, parts(item, seen)) for key, item in value.items()]
    inner = [parts(item, seen) for item in value] if isinstance(value, (tuple, list)) else []
    names = getattr(type(value), "__slots__", ()) or getattr(value, "__dict__", {})
    return kind, inner, [(name, parts(getattr(value, name), seen)) for name in names]


def saved(name, path, backend="eager"):
    with world() as module:
        compiled = funcaot.compile(getattr(module, name), backend=backend)
        compiled(given(module, name))
        compiled(given(module, name))
        found = compiled.save(path)
        assert found.programs, found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_objects_are_those_of_eager(name, tmp_path):
    saved(name, tmp_path / "p")
    with world() as module:
        function = getattr(module, name)
        compiled = funcaot.compile(function, backend="eager", artifacts=tmp_path / "p")
        for _ in range(2):
            mine, other = given(module, name), given(module, name)
            assert parts(compiled(mine)) == parts(function(other))
            assert parts(mine) == parts(other)
        if module.LOG:
            assert parts(module.LOG[::2]) == parts(module.LOG[1::2])
        assert is_loaded(compiled) or name == "keeps"  # an empty list is another one
        assert misses(compiled) <= (name == "keeps")
        result = compiled(given(module, name))
        if type(result).__module__ == NAME:
            assert type(result) is getattr(module, type(result).__qualname__)


def test_gradients_come_through_them(tmp_path):
    with world() as module:
        compiled = funcaot.compile(module.returns, backend="eager")
        found = compiled(tensor(1))
        (found.energy + found.forces.sum()).backward()
        compiled.save(tmp_path / "p")
    with world() as module:
        compiled = funcaot.compile(module.returns, backend="eager", artifacts=tmp_path / "p")
        x, y = tensor(1), tensor(1)
        for function, at in ((compiled, x), (module.returns, y)):
            found = function(at)
            (found.energy + found.forces.sum()).backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert is_loaded(compiled)


EDITS = {
    "a method of an argument": ("asks", "self.forces.sum()", "self.forces.prod()"),
    "a property": ("takes_class", "self.x * self.y", "self.x - self.y"),
    "a default": ("returns_class", "count: int = 3", "count: int = 4"),
    "fields": ("returns", "forces: torch.Tensor\n", "forces: torch.Tensor\n    z: int = 1\n"),
    "what makes it": (
        "returns_class",
        "count: int = 3",
        "count: int = 3\n    def __post_init__(self): object.__setattr__(self, 'count', 5)",
    ),
    "a base": ("rows", "class Rows(list)", "class Base(list): pass\nclass Rows(Base)"),
    "a value of an argument": ("takes_class", "factor: float = 2.0", "factor: float = 3.0"),
    "names of fields": ("takes", '"a b"', '"b a"'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_class_is_no_wrong_hit(edit, tmp_path):
    name, before, after = EDITS[edit]
    saved(name, tmp_path / "p")
    assert before in SOURCE
    with world(SOURCE.replace(before, after)) as module:
        function = getattr(module, name)
        compiled = funcaot.compile(function, backend="eager", artifacts=tmp_path / "p")
        mine, other = given(module, name), given(module, name)
        assert parts(compiled(mine)) == parts(function(other))
        assert not is_loaded(compiled)


def test_a_class_that_code_does_not_name_is_left_out(tmp_path):
    source = SOURCE + "def local(x):\n    return collections.namedtuple('L', 'u')(x.sum())\n"
    with world(source) as module:
        compiled = funcaot.compile(module.local, backend="eager")
        compiled(tensor(1))
        found = compiled.save(tmp_path / "p")
    assert not found.programs
    assert "L isn't among those that its code names" in str(found)


def test_a_file_names_no_class_that_the_program_does_not_know(tmp_path, monkeypatch):
    """Of what is in a file, nothing is looked up in modules."""
    from funcaot.aot.saved import structures
    from funcaot.aot.saved.errors import NotLoadedError

    with world() as module:
        known = structures.Classes([module.Result])
        for name in (["subprocess", "Popen"], ["builtins", "object"], [NAME, "Out"]):
            plan = [[making(name)], ["made", 0]]
            with pytest.raises(NotLoadedError, match="isn't among"):
                structures.result_from({"plan": plan, "leaves": 0}, known)
        plan = [[making([NAME, "Result"])], ["made", 0]]
        tree = structures.result_from({"plan": plan, "leaves": 0}, known)
        assert type(torch.utils._pytree.tree_unflatten([], tree)) is module.Result


def making(name):
    empty = {"items": [], "keys": {"tuple": []}, "attributes": [], "slots": []}
    return {"kind": name, "base": "object", **empty}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inside", "nests"])
def test_on_inductor(name, tmp_path):
    saved(name, tmp_path / "p", backend="inductor")
    with world() as module:
        function = getattr(module, name)
        compiled = funcaot.compile(function, artifacts=tmp_path / "p")
        assert parts(compiled(given(module, name))) == parts(function(given(module, name)))
        assert is_loaded(compiled)
        assert compiled_function(compiled).settings.statistics.graphs_compiled == 0


SCALE = 2.0


@functools.lru_cache(maxsize=7)
def scaled(count):
    return count * SCALE


@functools.cache
def triangle(count):
    return torch.ones(count, count).tril().sum(0)


class Lazy:
    @functools.cached_property
    def factor(self):
        return 3.0


LAZY = Lazy()
KEPT = {
    "a number": lambda x: x * scaled(3),
    "a tensor": lambda x: x * triangle(4),
    "a property": lambda x: x * LAZY.factor,
}


@pytest.mark.parametrize("name", KEPT)
def test_results_that_functools_keeps(name, tmp_path):
    for function in (scaled, triangle):
        function.cache_clear()
    x = torch.arange(4.0)
    compiled = reloaded(KEPT[name], lambda function: (function(x), function(x)), tmp_path / "one")
    for function in (scaled, triangle):
        function.cache_clear()
    torch.testing.assert_close([compiled(x), compiled(x)], [KEPT[name](x)] * 2)
    assert misses(compiled) == 0


def test_what_a_kept_result_was_made_of_is_compared(tmp_path, monkeypatch):
    scaled.cache_clear()
    function, x = KEPT["a number"], torch.arange(4.0)
    compiled = reloaded(function, lambda function: function(x), tmp_path / "one")
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    scaled.cache_clear()
    torch.testing.assert_close(compiled(x), x * 15)
    assert misses(compiled) == 1


def test_a_result_that_was_kept_before_is_left_out(tmp_path):
    scaled.cache_clear()
    scaled(3)
    compiled = funcaot.compile(KEPT["a number"], backend="eager")
    compiled(torch.arange(4.0))
    saved = compiled.save(tmp_path / "one")
    assert not saved.programs
    assert "scaled kept from an earlier call" in str(saved)


LOSSES = collections.defaultdict(list)


def logged(x):
    loss = (x * 2).sum()
    LOSSES["loss"].append(loss.detach())
    return loss


def counted(x):
    found = collections.defaultdict(float)
    found["sum"] += x.sum()
    found["mean"] += x.mean()
    return found


def nested(x):
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    found["a"]["b"].append(x * 2)
    return found


@pytest.mark.parametrize("function", [logged, counted])
def test_default_dictionaries(function, tmp_path):
    def run(function):
        LOSSES.clear()
        found = [function(torch.arange(float(size))) for size in (3, 4, 4)]
        return found, dict(LOSSES), [getattr(each, "default_factory", None) for each in found]

    compiled = reloaded(function, run, tmp_path / "one")
    ours, theirs = run(compiled), run(function)
    assert ours[2] == theirs[2]
    torch.testing.assert_close(ours[:2], theirs[:2])
    assert [*map(type, ours[0])] == [*map(type, theirs[0])]
    assert misses(compiled) == 0


def test_a_default_dictionary_with_a_function_of_the_users_is_left_out(tmp_path):
    compiled = funcaot.compile(nested, backend="eager")
    compiled(torch.ones(2))
    saved = compiled.save(tmp_path / "one")
    assert not saved.programs
    assert "default dictionary" in str(saved)
