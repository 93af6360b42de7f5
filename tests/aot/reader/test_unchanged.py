"""What no code reads, and what is replaced by an equal value, compiles nothing again."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.aot.reader.cells import Cell, random_cells
from tests.aot.reader.held.holders import HOLDERS
from tests.aot.reader.held.values import VALUES
from tests.aot.reader.held.worlds import IMPORTS, Script, World, argument
from tests.aot.reader.readers import READERS

# Source that defines target, and a statement that changes what it doesn't read; {n} counts calls.
UNREAD = {
    "another global": ("def target(x): return x * 2\nunrelated = 1", "unrelated = {n}"),
    "a new global": ("def target(x): return x * 2", "unrelated_{n} = {n}"),
    "another attribute": (
        "box = types.SimpleNamespace(k=2, unread=1)\ndef target(x): return x * box.k",
        "box.unread = {n}",
    ),
    "a new attribute": (
        "box = types.SimpleNamespace(k=2)\ndef target(x): return x * box.k",
        "setattr(box, 'unread_{n}', {n})",
    ),
    "an attribute that is removed and added": (
        "box = types.SimpleNamespace(unread=1, k=2)\ndef target(x): return x * box.k",
        "del box.unread; box.unread = {n}",
    ),
    "another slot": (
        "class Box:\n    __slots__ = ('k', 'unread')\n"
        "box = Box()\nbox.k = box.unread = 2\ndef target(x): return x * box.k",
        "box.unread = {n}",
    ),
    "another field of a dataclass": (
        "@dataclasses.dataclass\nclass Box:\n    k: int = 2\n    unread: int = 1\n"
        "box = Box()\ndef target(x): return x * box.k",
        "box.unread = {n}",
    ),
    "another item of a dictionary": (
        "table = dict(k=2, unread=1)\ndef target(x): return x * table['k']",
        "table['unread'] = {n}",
    ),
    "a new item of a dictionary": (
        "table = dict(k=2)\ndef target(x): return x * table['k']",
        "table[{n}] = {n}",
    ),
    "another of 10,000 items": (
        "table = dict((f'k{i}', i) for i in range(10_000))\ndef target(x): return x * table['k3']",
        "table['k5'] = {n}",
    ),
    "another name of a module": (
        "box = types.ModuleType('box')\nbox.k = 2\ndef target(x): return x * box.k",
        "box.unread = {n}",
    ),
    "a new name of torch": ("def target(x): return torch.sin(x)", "torch.unread = {n}"),
    "another class attribute": (
        "class Box:\n    k = 2\ndef target(x): return x * Box.k",
        "Box.unread = {n}",
    ),
    "another method": (
        "class Box:\n    def go(self, x): return x * 2\n"
        "box = Box()\ndef target(x): return box.go(x)",
        "Box.other = lambda self: {n}",
    ),
    "a subclass": (
        "class Box:\n    k = 2\nbox = Box()\ndef target(x): return x * box.k",
        "class Other{n}(Box): k = {n}",
    ),
    "another instance": (
        "class Box:\n    k = 2\nbox = Box()\ndef target(x): return x * box.k",
        "other = Box(); other.k = {n}",
    ),
    "an attribute of a module": (
        "class Net(nn.Module):\n    def forward(self, x): return x * 2\ntarget = Net()",
        "target.epoch = {n}",
    ),
    "an attribute of a submodule": (
        "target = nn.Sequential(nn.ReLU(), nn.Tanh())",
        "target[0].epoch = {n}",
    ),
    "gradients of parameters": (
        "target = nn.Linear(3, 3)",
        "target.weight.grad = torch.ones(3, 3) * {n}",
    ),
    "values of parameters": (
        "target = nn.Linear(3, 3)",
        "with torch.no_grad(): target.weight.add_({n})",
    ),
    "losses that a caller appends": (
        "class Net(nn.Module):\n    def forward(self, x): return x * 2\n"
        "target = Net()\ntarget.losses = []",
        "target.losses.append({n})",
    ),
    "an environment variable": (
        "os.environ['WORLD'] = '2'\ndef target(x): return x * float(os.environ['WORLD'])",
        "os.environ['WORLD_UNREAD'] = str({n})",
    ),
    "another default argument's content": (
        "def target(x, k=2, unread=[]): return x * k",
        "target.__defaults__[1].append({n})",
    ),
    "a function's unread attribute": (
        "def target(x): return x * 2",
        "target.calls = {n}",
    ),
    "the random state": ("def target(x): return x * 2", "random.random(); torch.rand(1)"),
    "nothing, beside an overridden class attribute": (
        "class Base(nn.Module):\n    config_class = None\n"
        "class Net(Base):\n    config_class = dict\n"
        "    def forward(self, x): return x * (2 if self.config_class is None else 3)\n"
        "target = Net()",
        "",
    ),
    "nothing, beside a property over a class attribute": (
        "class Base(nn.Module):\n    k = 2\n"
        "class Net(Base):\n    @property\n    def k(self): return 5\n"
        "    def forward(self, x): return x * self.k\ntarget = Net()",
        "",
    ),
    "nothing, beside a method that is overridden": (
        "class Base(nn.Module):\n    def go(self, x): return x * 2\n    k = 2\n"
        "class Net(Base):\n    def go(self, x): return super().go(x) * self.k\n"
        "    def forward(self, x): return self.go(x)\n    k = 3\ntarget = Net()",
        "",
    ),
    "nothing, beside a number that isn't equal to itself": (
        "k = float('nan')\ndef target(x): return x * k",
        "",
    ),
    "nothing, beside a bound method held": (
        "class Box:\n    def go(self, x): return x * 2\ngo = Box().go\ndef target(x): return go(x)",
        "",
    ),
    "nothing, beside objects without equality": (
        "class Box:\n    k = 2\n    def __eq__(self, other): return False\n    __hash__ = None\n"
        "box = Box()\ndef target(x): return x * box.k",
        "",
    ),
    "nothing, beside objects made inside": (
        "class Box:\n    def __init__(self, k): self.k = k\n"
        "    def go(self, x): return x * self.k\n"
        "def target(x): return Box(2).go(x)",
        "",
    ),
    "nothing, beside a tuple without a length": (
        "class Irrep(tuple):\n    def __len__(self): raise NotImplementedError\n"
        "irrep = Irrep((2, 3))\ndef target(x): return x * irrep[0]",
        "",
    ),
    "nothing, beside an object whose comparison is an array": (
        "array = np.ones(3)\ntable = dict(a=array)\n"
        "def target(x): return x * float(table['a'].sum())",
        "",
    ),
}

# Source in which {k} is replaced by an equal value that is another object.
EQUAL = {
    "float": "float('2.5')",
    "str": "''.join(['re', 'lu'])",
    "big int": "int('9' * 20)",
    "nan": "float('nan')",
    "tuple": "tuple([2.0, (1, 'a')])",
    "list": "[2.0, 'a']",
    "dictionary": "dict(a=2.0, b=[1])",
    "set": "{2.0, 'a'}",
    "frozenset": "frozenset([2.0])",
    "range": "range(2, 5)",
    "slice": "slice(0, 2)",
    "bytes": "bytes([1, 2])",
    "size": "torch.Size([2, 3])",
    "device": "torch.device('cpu')",
    "array scalar": "np.float64(2.0)",
    "array": "np.array([2.0, 3.0])",
    "tensor that looks the same": "torch.tensor([2.0, 3.0])",
    "partial of a global": "functools.partial(torch.mul, other=2)",
}

# Source that defines target, whose own bookkeeping nobody reads.
COUNTED = {
    "a global counter": "n = 0\ndef target(x):\n    global n\n    n += 1\n    return x * 2",
    "an attribute": (
        "class Net(nn.Module):\n    calls = 0\n"
        "    def forward(self, x):\n        self.calls += 1\n        return x * 2\ntarget = Net()"
    ),
    "a class attribute": (
        "class Net(nn.Module):\n    calls = 0\n"
        "    def forward(self, x):\n        Net.calls += 1\n        return x * 2\ntarget = Net()"
    ),
    "a closure variable": (
        "def make():\n    n = 0\n    def target(x):\n        nonlocal n\n        n += 1\n"
        "        return x * 2\n    return target\ntarget = make()"
    ),
    "an item": "seen = dict(n=0)\ndef target(x):\n    seen['n'] += 1\n    return x * 2",
    "a list": "log = []\ndef target(x):\n    log.append('called')\n    return x * 2",
    "a queue": (
        "log = collections.deque(maxlen=4)\n"
        "def target(x):\n    log.append('called')\n    return x * 2"
    ),
    "a logger": (
        "import logging\nlogger = logging.getLogger(__name__)\n"
        "def target(x):\n    logger.debug('called with %s', x.shape)\n    return x * 2"
    ),
    "a lock": ("lock = threading.Lock()\ndef target(x):\n    with lock:\n        return x * 2"),
    "a cached function": (
        "@functools.lru_cache\ndef twice(k): return 2 * k\ndef target(x):\n    return x * twice(1)"
    ),
    "a cached property": (
        "class Box:\n    @functools.cached_property\n    def k(self): return 2\n"
        "box = Box()\ndef target(x):\n    return x * box.k"
    ),
    "a warning": (
        "import warnings\ndef target(x):\n    with warnings.catch_warnings():\n"
        "        warnings.simplefilter('ignore')\n        warnings.warn('called')\n    return x * 2"
    ),
    "a check of an abstract class": (
        "def target(x):\n    assert isinstance([], collections.abc.Sequence)\n    return x * 2"
    ),
}


def misses(source: str, statement: str, *, start: int = 2) -> int:
    """How many calls after the first ones were compiled again, each right."""
    script = Script(f"{IMPORTS}\ntorch.manual_seed(0)\n{source}\n", "", "")
    world, twin = World(script), World(script)
    try:
        compiled = funcaot.compile(world.target, backend="eager")
        before = 0
        for n in range(6):
            x = argument()
            assert_close(compiled(x), twin.target(x), equal_nan=True)
            if n == start - 1:
                before = funcaot.report(compiled).cache_misses
            for each in (world, twin):
                exec(statement.format(n=n), vars(each.module))
        return funcaot.report(compiled).cache_misses - before
    finally:
        world.close(), twin.close()
        vars(torch).pop("unread", None)


# Right, but compiled again: which items of a container code reads isn't known.
COMPARED_WHOLE = {
    "another item of a dictionary",
    "a new item of a dictionary",
    "another of 10,000 items",
    "another default argument's content",
}


@pytest.mark.parametrize("case", [case for case in UNREAD if case not in COMPARED_WHOLE])
def test_what_no_code_reads_is_not_compared(case):
    source, statement = UNREAD[case]
    assert misses(source, statement, start=1) == 0


@pytest.mark.parametrize("case", sorted(COMPARED_WHOLE))
def test_what_is_compared_whole(case):
    source, statement = UNREAD[case]
    assert misses(source, statement, start=1) > 0


@pytest.mark.parametrize("case", EQUAL)
def test_an_equal_value_is_the_same_value(case):
    use = {"tensor that looks the same": "x * k[0]", "partial of a global": "k(x)"}.get(
        case, "x * len(str(k))"
    )
    source = f"k = {EQUAL[case]}\ndef target(x): return {use}"
    assert misses(source, f"k = {EQUAL[case].replace('{', '{{').replace('}', '}}')}", start=1) == 0


@pytest.mark.parametrize("case", COUNTED)
def test_what_is_only_counted_is_not_compared(case):
    assert misses(COUNTED[case], "") == 0


def cells_of_each_part() -> list[Cell]:
    """A cell for each holder, with random readers and values, before anything changes."""
    found: dict[str, Cell] = {}
    for cell in random_cells(10 * len(HOLDERS), seed=11):
        if cell.change != "delete_error":
            found.setdefault(cell.holder, cell)
    return list(found.values())


@pytest.mark.parametrize("cell", cells_of_each_part(), ids=str)
def test_nothing_that_changed_is_no_miss(cell):
    world = World(cell.script())
    try:
        compiled = funcaot.compile(world.target, backend="eager")
        for _ in range(2):
            compiled(argument())
        before = funcaot.report(compiled).cache_misses
        for _ in range(3):
            compiled(argument())
        # The first call may put something there itself, such as a dictionary's default.
        assert funcaot.report(compiled).cache_misses == before <= 2
    finally:
        world.close()


def test_a_cell_for_each_part():
    """The cells above reach enough of the matrix."""
    cells = cells_of_each_part()
    assert len(cells) == len(HOLDERS)
    assert len({cell.reader for cell in cells}) > 0.8 * len(READERS)
    assert len({cell.value for cell in cells}) > 0.5 * len(VALUES)
