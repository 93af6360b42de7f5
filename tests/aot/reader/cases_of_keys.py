"""Changes of objects that are keys, and of what methods of a library read of an object."""

from tests.aot.reader.held.worlds import IMPORTS, Script

CASES: dict[str, Script] = {}


def case(name: str, source: str, change: str, undo: str) -> None:
    """Register a world with one change."""
    CASES[name] = Script(f"{IMPORTS}\n{source.strip()}\n", change, undo)


KEYS = """
import fractions
class Key:
    def __init__(self, number):
        self.number = number
    def __hash__(self):
        return 1
    def __eq__(self, other):
        return self.number == other.number
class Name: pass
first, second = Name(), Name()
half, quarter = fractions.Fraction(1, 2), fractions.Fraction(1, 4)
pair = (1, first)
{}
def target(x):
    return {}
"""


def keyed(name: str, table: str, read: str, change: str) -> None:
    """Register a world whose table, a dictionary or a set, has objects as keys."""
    make = f"table = {table}"
    case(name, KEYS.format(make, read), change, make)


keyed("another fraction as key", "{half: 1.0}", "x * float([*table][0])", "table = {quarter: 1.0}")
keyed("another fraction in a set", "{half}", "x * float([*table][0])", "table = {quarter}")
keyed("what a fraction leads to", "{half: 1.0}", "x * table[half]", "table[half] = 2.0")
keyed("what a tuple leads to", "{pair: 1.0}", "x * table[pair]", "table[pair] = 2.0")
keyed(
    "another object in a tuple as key",
    "{(1, first): 1.0}",
    "x * (2 if [*table][0][1] is first else 3)",
    "table = {(1, second): 1.0}",
)
keyed(
    "objects as keys in another order",
    "{first: 1.0, second: 2.0}",
    "x * [*table.values()][0]",
    "table = {second: 2.0, first: 1.0}",
)
keyed(
    "what a key compares",
    "{Key(2.0): 3.0}",
    "x * table.get(Key(2.0), 5.0)",
    "next(iter(table)).number = 4.0",
)
INHERITED = """
import fractions, statistics, string
class Text(string.Template): pass
class Share(fractions.Fraction): pass
class Normal(statistics.NormalDist): pass
held = {}
def target(x):
    return x * {}
"""
for kind, before, after, read in [
    ("text", "Text('ab$c')", "Text('abc$c')", "len(held.substitute(c=1))"),
    ("slots", "Share(1, 2)", "Share(1, 4)", "float(held)"),
    ("slots by a property", "Normal(2.0)", "Normal(3.0)", "held.mean"),
]:
    source = INHERITED.format(before, read)
    case(f"a library's {kind}", source, f"held = {after}", f"held = {before}")
