"""What indices have to be simplified for is looked for before SymPy is asked to do it.

Inductor makes one dimension of two where an index has the remainders of both, or one's remainder
and the other's quotient. It has SymPy match each pair of terms with patterns, which is a tenth of
the time in which it writes the loops of a large force field, and nearly always finds nothing. The
terms are numbers times a quotient or a remainder; whether two belong together is read off them.

An index without quotients and remainders is done once it is expanded. What Inductor knows of its
loops' variables is for these alone, and is written as relations first, which SymPy takes long for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["mended"]


@contextlib.contextmanager
def mended() -> Iterator[None]:
    """Let Inductor match only terms that consist of something else, and look before it reasons."""
    from torch._inductor import sizevars

    simplified: Any = sizevars.SizeVarAllocator._simplify_with_ranges

    usual: Any = sizevars._join_dimensions_cached

    @functools.cache
    def join(index: Any) -> Any:
        import sympy

        terms = [_term(term) for term in index.args]
        known = [term for term in terms if term is not None]
        if len(known) != len(terms):
            return usual(index)
        for kind in (sizevars.ModularIndexing, sizevars.FloorDiv):
            for first in known:
                found = _partner(first, known, kind, sympy.Wild("modulus2", integer=True))
                if found is _UNKNOWN:
                    return usual(index)
                if found is not None:
                    joined = first.scale * _together(first.part, found.part)
                    return sizevars.join_dimensions(index - first.whole - found.whole + joined)
        return index

    def simplify(allocator: Any, index: Any, ranges: Any) -> Any:
        if not _has_parts(index):
            plain = allocator.simplify(index)
            if not _has_parts(plain):
                return plain
        return simplified(allocator, index, ranges)

    with (
        replaced_here(sizevars, "_join_dimensions_cached", join),
        replaced_here(sizevars.SizeVarAllocator, "_simplify_with_ranges", simplify),
    ):
        yield


def _has_parts(index: Any) -> bool:
    """Whether there are quotients or remainders in an index."""
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    return not hasattr(index, "has") or bool(index.has(ModularIndexing, FloorDiv))


class _Term(NamedTuple):
    """A term of an index: a number times a quotient, a remainder or something without these."""

    whole: Any
    scale: Any
    part: Any


_UNKNOWN: Any = object()


def _term(whole: Any) -> _Term | None:
    """A term; None if there are quotients or remainders elsewhere than as its only factor."""
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    scale, part = whole.as_coeff_Mul()
    if isinstance(part, ModularIndexing | FloorDiv):
        return _Term(whole, scale, part) if scale.is_Integer else None
    return None if part.has(ModularIndexing, FloorDiv) else _Term(whole, scale, part)


def _partner(first: _Term, terms: list[_Term], kind: Any, unknown: Any) -> Any:
    """The term that a remainder is joined with: another remainder, or a quotient."""
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    if not isinstance(first.part, ModularIndexing):
        return None
    parts: Any = first.part.args
    base, divisor, modulus = parts
    others = (term for term in terms if term is not first)
    if base.is_Symbol and not any(isinstance(term.part, kind) for term in others):
        return None
    is_quotient = kind is FloorDiv
    further = (base, divisor * modulus)
    wanted = FloorDiv(*further) if is_quotient else ModularIndexing(*further, unknown)
    wanted_scale, wanted_part = (first.scale * modulus * wanted).as_coeff_Mul()
    if type(wanted_part) is not kind or (not is_quotient and wanted_part.args[2] != unknown):
        return _UNKNOWN
    for term in terms:
        is_wanted = term.scale == wanted_scale and isinstance(term.part, kind)
        if is_wanted and term is not first and term.part.args[:2] == wanted_part.args[:2]:
            return term
    return None


def _together(first: Any, second: Any) -> Any:
    """Two parts of a dimension as one."""
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    base, divisor, modulus = first.args
    if isinstance(second, FloorDiv):
        return FloorDiv(base, divisor)
    return ModularIndexing(base, divisor, modulus * second.args[2])
