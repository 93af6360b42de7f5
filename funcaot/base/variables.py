"""Which environment variables code asks for: told by the frames of the class of ``os.environ``.

Others may come and go: torch sets some when it first needs them, a test runner one for each test.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["OF_ENVIRON", "Variables", "is_environ"]

# All code through which ``os.environ`` is looked at; what it inherits ends in these.
OF_ENVIRON = frozenset(
    method.__code__
    for method in vars(type(os.environ)).values()
    if isinstance(method, types.FunctionType)
)
_BY_NAME = ("__getitem__", "__delitem__")
_OF_NONE = ("__init__", "__setitem__", "setdefault")  # The last one gets it as others do.


@dataclass(eq=False)
class Variables:
    """The variables that were asked for.

    Attributes:
        names: Their names.
        all: Whether code looked at all of them, or at some in a way that tells no names.
    """

    names: set[str] = field(default_factory=set)
    all: bool = False

    def note(self, frame: types.FrameType) -> None:
        """Note what a frame of such a method, which starts, asks for."""
        code = frame.f_code
        if code.co_name in _OF_NONE:
            return
        given = frame.f_locals
        name = given[code.co_varnames[1]] if code.co_name in _BY_NAME else None
        if type(name) is bytes:
            name = os.fsdecode(name)
        if type(name) is str and is_environ(given[code.co_varnames[0]]):
            self.names.add(name)
        else:
            self.all = True

    def update(self, other: Variables) -> None:
        """Note what others asked for."""
        self.names |= other.names
        self.all |= other.all

    def __iter__(self) -> Iterator[str]:
        """The names in order; none if all are looked at."""
        return iter(() if self.all else sorted(self.names))


def is_environ(thing: object) -> bool:
    """Whether something is ``os.environ``, or the same with bytes in it."""
    return thing is os.environ or thing is getattr(os, "environb", None)
