"""Attributes that Python looks for where no code names them; the names that code reads ask.

A ``case`` names them in a constant or by ``__match_args__``, a runtime protocol in its class, a
format in its text; ``==`` and the text of a namespace take all.
"""

from __future__ import annotations

import dis
import itertools
import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# These read attributes that a text names, as ``"{0.scale}"`` does.
FORMATTING = {"format", "format_map", "vformat"}
_NAMED_IN_TEXT = re.compile(r"\.([^\W\d]\w*)")
# These look at all that a namespace holds, by ``==`` or as text.
_SEES_ALL = {"repr", "str", "format", "print", "count", "index", "remove", "__eq__", "__repr__"}
# Code that catches one of these may look for what isn't there.
_LOOKUP_ERRORS = {"AttributeError", "NameError", "KeyError", "LookupError"}
_LOOKUP_ERRORS |= {"Exception", "BaseException"}


def names_in_texts(texts: Iterable[Any]) -> set[str]:
    """Attributes that texts name which are formats."""
    found = [text for text in texts if isinstance(text, str) and "{" in text]
    return {name for text in found for name in _NAMED_IN_TEXT.findall(text)}


def names_among(constants: Iterable[Any]) -> set[str]:
    """Texts among the constants of code that may be names of attributes."""
    return {
        text
        for text in constants
        if isinstance(text, str) and len(text) < 40 and text.isidentifier()
    }


def set_by_text(code: types.CodeType, names: set[str]) -> set[str]:
    """Attributes that code sets by ``object.__setattr__(thing, "name", value)``."""
    return names_among(code.co_consts) if "__setattr__" in names else set()


def matched_in(
    code: types.CodeType, instructions: Sequence[dis.Instruction]
) -> tuple[set[str], bool]:
    """Attributes by which code matches objects: those that it names, and whether there are more."""
    counts = [item.arg for item in instructions if item.opname == "MATCH_CLASS"]
    if not counts:
        return set(), False
    tuples = [each for each in code.co_consts if isinstance(each, tuple)]
    return {name for each in tuples for name in each if isinstance(name, str)}, any(counts)


def looks_at_all(names: set[str], instructions: Sequence[dis.Instruction]) -> bool:
    """Whether code compares two things none of which is a constant, or makes text of one."""
    if names & _SEES_ALL:
        return True
    for before, item in itertools.pairwise(instructions):
        if item.opname == "CONTAINS_OP" or item.opname.startswith(("FORMAT_", "CONVERT_")):
            return True
        compares = item.opname == "COMPARE_OP" and ("==" in item.argrepr or "!=" in item.argrepr)
        if compares and before.opname not in ("LOAD_CONST", "LOAD_SMALL_INT"):
            return True
    return False


def looked_for(names: Any, things: Iterable[Any], texts: Callable[[], Iterable[str]]) -> set[str]:
    """Attributes that protocols and patterns of ``match`` look for, and that formats name.

    Args:
        names: The names that code reads.
        things: What it reaches.
        texts: Finds the texts that it reaches.
    """
    kinds = [kind for kind in things if isinstance(kind, type)]
    found = {name for kind in kinds for name in _of_protocol(kind)}
    if names.matches_places:
        found.update(name for kind in kinds for name in _of_class(kind, "__match_args__", ()))
    if names.users_mention_any(FORMATTING):
        found |= names_in_texts(texts())
    return found


def _of_protocol(kind: type) -> set[str]:
    """The attributes by which ``isinstance`` tells whether an object follows a protocol."""
    if not _of_class(kind, "_is_runtime_protocol", False):
        return set()
    protocols = [base for base in kind.__mro__ if vars(base).get("_is_protocol", False)]
    own = [name for base in protocols for name in vars(base)]
    own += [name for base in protocols for name in vars(base).get("__annotations__", ())]
    return {name for name in own if not name.startswith("_")}


def _of_class(kind: type, name: str, default: Any) -> Any:
    """What a class has under a name; its metaclass, which may make up attributes, isn't asked."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), default)


def catches(code: types.CodeType, instructions: Sequence[dis.Instruction]) -> bool:
    """Whether code goes on after it has looked for what isn't there."""
    if not _LOOKUP_ERRORS.isdisjoint(code.co_names):
        return True
    ops = {item.opname for item in instructions}
    return "POP_EXCEPT" in ops and not ops & {"CHECK_EXC_MATCH", "WITH_EXCEPT_START"}


def compares_identity(instructions: Sequence[dis.Instruction]) -> bool:
    """Whether code has an ``is`` between two things none of which is a constant, or makes a set."""
    return any(
        item.opname == "BUILD_SET" or (item.opname == "IS_OP" and before.opname != "LOAD_CONST")
        for before, item in itertools.pairwise(instructions)
    )
