"""The table of holders, which ``held_by_names``, ``_by_objects`` and ``_by_containers`` fill."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.aot.reader.held.worlds import Held, Reader, Table

HOLDERS = Table()


@dataclass(frozen=True)
class Holder:
    """A kind of place.

    Attributes:
        make: Makes the source text, for a reader.
        owner: What ``self`` has to be: ``"instance"``, ``"class"``, or ``""`` for no matter what.
        values: The kinds of values that it can hold; empty for all.
        parameters: Whether it is a parameter of the code that reads.
        hashable: Whether it takes hashable values only.
        binds: Whether it is a class whose instance is asked, which makes methods of functions.
    """

    make: Callable[[Reader], Held]
    owner: str = ""
    values: tuple[str, ...] = ()
    parameters: bool = False
    hashable: bool = False
    binds: bool = False


def holder(**options):
    """Register a holder, made for a reader, under its function's name."""

    def register(make):
        HOLDERS[make.__name__] = Holder(make, **options)
        return make

    return register


def fixed(name: str, held: Held, **options) -> None:
    """Register a holder that is the same for every reader."""
    HOLDERS[name] = Holder(lambda reader: held, **options)


def without(held: Held, tolerant: str, default: str) -> Held:
    """The place read by an expression that takes a default where there is nothing."""
    return replace(held, access=tolerant.format(default=default), tolerant=())
