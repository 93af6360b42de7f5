"""The cells of the matrix: which parts are composed, and the sample that covers every pair."""

import functools
import itertools
import random
import textwrap
from dataclasses import dataclass
from fnmatch import fnmatchcase

from funcaot.errors import FuncaotError, UnsupportedError
from tests.aot.reader.held.holders import HOLDERS, without
from tests.aot.reader.held.values import (
    ABOUT_GRADIENTS,
    BECOME_METHODS,
    MODULES,
    NAMES_OF_FUNCTIONS,
    VALUES,
)
from tests.aot.reader.held.worlds import IMPORTS, Held, Reader, Script, Slots, Value
from tests.aot.reader.readers import READERS

# What is held where most things can be: crossed with every reader and every holder.
CORE_VALUES = (
    "float",
    "str",
    "tensor",
    "torch_function",
    "function",
    "object",
    "class_with_a_setting",
)
# Code that reads in the most different ways: crossed with every holder and every value.
CORE_READERS = ("plain", "method", "submodule_forward", "made_inside", "function_backward")
# Places of the most different kinds: crossed with every reader and every value.
CORE_HOLDERS = (
    "global_name",
    "closure_cell",
    "instance_attribute",
    "own_instance_attribute",
    "class_as_namespace",
    "own_class_attribute",
    "dictionary_item",
    "list_item",
)


@dataclass(frozen=True)
class Cell:
    """One composition. ``change`` is the change's name, with a number where there are several."""

    reader: str
    holder: str
    value: str
    change: str

    def __str__(self) -> str:
        return f"{self.reader}-{self.holder}-{self.value}-{self.change}"

    @property
    def held(self) -> Held:
        """The place's source text."""
        return HOLDERS[self.holder].make(READERS[self.reader])

    @property
    def programs(self) -> int:
        """How many programs it may make; what a call raises isn't kept, so that is tried again."""
        return self.held.programs + 2 * (self.change == "delete_error")

    def script(self) -> Script:
        """The source text of the cell's world."""
        reader, value, held = READERS[self.reader], VALUES[self.value], self.held
        kind, _, number = self.change.partition("_")
        put, back = held.rebind.format(new="second"), held.undo or held.rebind.format(new="first")
        changes = {"rebind": (put, back), "swap": (held.swap, held.swap)}
        if kind == "mutate":
            place = held.place or held.access
            changes["mutate"] = tuple(text.replace("{place}", place) for text in value.mutate)
        initially = ""
        if kind in ("add", "delete"):
            default = {"add": "first", "delete": "second"}[kind]
            if number == "error":
                changes["delete"] = (held.delete, back)
            else:
                expression = held.tolerant[int(number)]
                changes = {"delete": (held.delete, back), "add": (put, held.delete)}
                initially = held.delete if kind == "add" else ""
                held = without(held, expression, default)
        return Script(_source(reader, value, held) + initially, *changes[kind], main=reader.main)


def _source(reader: Reader, value: Value, held: Held) -> str:
    text = reader.source(Slots(held, held.access, value.use))
    if held.cell:
        text = f"def make(held):\n{textwrap.indent(text + _CELL, '    ')}\n{_MADE}"
    return "\n".join([IMPORTS, value.source, held.before, text, held.after, ""])


# A function around a reader, whose variable ``held`` the reader closes over.
_CELL = """
def get_held():
    return held

def set_held(value):
    nonlocal held
    held = value

found = dict(locals())
del found["held"]
return found
"""
_MADE = "globals().update(make(first))\n"


def changes(reader_name: str, holder_name: str, value_name: str) -> list[str]:
    """The changes that a composition allows."""
    held, value = HOLDERS[holder_name].make(READERS[reader_name]), VALUES[value_name]
    names = ["swap"] if held.swap else ["rebind"]
    inside = held.access.startswith(("self", "cls", "super("))
    if value.mutate and (held.place or not inside) and not held.swap:
        names.append("mutate")
    if held.delete:
        count = len(held.tolerant)
        if holder_name == "own_instance_attribute" and value_name in MODULES:
            count = 2  # A module within a module isn't in its __dict__.
        names += [f"{change}_{n}" for n in range(count) for change in ("add", "delete")]
        names += ["delete_error"] * held.error
    return names


def makes_sense(reader_name: str, holder_name: str, value_name: str) -> bool:
    """Whether a reader, a holder and a kind of value go together."""
    reader, holder, value = READERS[reader_name], HOLDERS[holder_name], VALUES[value_name]
    without_gradients = reader_name in ("function_forward", "function_backward")
    return (
        (value_name not in BECOME_METHODS or not holder.binds)
        and (not holder.values or value_name in holder.values)
        and (not holder.hashable or value.hashable)
        and (not reader.keeps_shape or value.keeps_shape)
        and (not holder.owner or holder.owner == reader.owner or reader.owner == "instance")
        # A Function's forward and backward record nothing, and a backward isn't differentiated.
        and not (without_gradients and value_name in ABOUT_GRADIENTS)
        and not (without_gradients and value_name == "function_class_with_another_backward")
        # Without a setup_context, torch.func refuses a Function.
        and not (reader_name == "under_vmap" and value_name in NAMES_OF_FUNCTIONS)
        # What is a module and assigned to a module goes to its list of children.
        and not (
            value_name in MODULES
            and "nn.Module" in reader.source(Slots(Held(""), "", ""))
            and holder_name in ("own_instance_over_class", "own_state_of_a_descriptor")
        )
        # The class has the property itself.
        and not (reader.itself == "cls" and holder_name == "own_property_that_is_replaced")
        # Its own way to look for attributes is in the way of this reader's.
        and not (reader_name == "attribute_lookup" and holder_name == "own_state_behind_getattr")
    )


def cells_of(reader: str, holder: str, value: str) -> list[Cell]:
    """The cells of a composition."""
    if not makes_sense(reader, holder, value):
        return []
    return [Cell(reader, holder, value, change) for change in changes(reader, holder, value)]


def random_cells(count: int, seed: int) -> list[Cell]:
    """Cells drawn from all compositions, some hundred thousand; as many of each holder."""
    draw = random.Random(seed)
    readers, values = list(READERS), list(VALUES)
    holders = itertools.cycle(draw.sample(list(HOLDERS), len(HOLDERS)))
    found: dict[Cell, None] = {}
    while len(found) < count:
        holder, cells = next(holders), []
        while not cells:
            value = draw.choice(HOLDERS[holder].values or values)
            cells = cells_of(draw.choice(readers), holder, value)
        found[draw.choice(cells)] = None
    return list(found)


@functools.cache
def all_cells() -> tuple[Cell, ...]:
    """The compositions of which two parts are core; all changes only of a core value."""
    found = []
    for reader, holder, value in itertools.product(READERS, HOLDERS, VALUES):
        cores = (reader in CORE_READERS) + (holder in CORE_HOLDERS) + (value in CORE_VALUES)
        if cores < 2:
            continue
        cells = cells_of(reader, holder, value)
        if value not in CORE_VALUES[:2]:
            cells = [cell for cell in cells if "_" not in cell.change]
        found += cells
    return tuple(found)


@functools.cache
def sample() -> tuple[Cell, ...]:
    """Few cells in which every pair of families occurs, and every part a few times.

    Chosen from random ones: a cell is taken if it has a pair that is new.
    """
    chosen, seen = [], set()
    for cell in random_cells(6000, seed=0):
        if not covered(cell) <= seen:
            chosen.append(cell)
            seen |= covered(cell)
    return tuple(chosen)


def covered(cell: Cell) -> set[tuple[str, ...]]:
    """What a cell covers: every pair of families, and each of its parts by name."""
    tables = {"reader": READERS, "holder": HOLDERS, "value": VALUES}
    families = {part: table.families[getattr(cell, part)] for part, table in tables.items()}
    families["change"] = cell.change.partition("_")[0]
    pairs = itertools.combinations(families.items(), 2)
    found: set[tuple[str, ...]] = {(*one, *other) for one, other in pairs}
    found |= {("reader", cell.reader, families["holder"]), ("holder", cell.holder)}
    return found | {("value", cell.value), ("value", cell.value, str(cell.change == "mutate"))}


@dataclass(frozen=True)
class Limitation:
    """Cells that raise an error instead, by patterns of their parts (strict: each of them does).

    Attributes:
        reason: Why, as the page of limits says it.
        message: What the error says.
        reader: A pattern of names, as ``fnmatch`` reads it; likewise the other parts.
        error: The error's type.
    """

    reason: str
    message: str
    reader: str = "*"
    holder: str = "*"
    value: str = "*"
    change: str = "*"
    error: type[FuncaotError] = UnsupportedError

    def covers(self, cell: Cell) -> bool:
        """Whether a cell is one of these."""
        parts = ("reader", "holder", "value", "change")
        return all(fnmatchcase(getattr(cell, part), getattr(self, part)) for part in parts)


LIMITATIONS: tuple[Limitation, ...] = ()


def limitation_of(cell: Cell) -> Limitation | None:
    """What limits a cell, if something does."""
    return next((limitation for limitation in LIMITATIONS if limitation.covers(cell)), None)
