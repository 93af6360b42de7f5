"""Where a value is held: all holders, from the modules that register them."""

from tests.aot.reader.held import (
    held_by_containers,
    held_by_names,
    held_by_objects,
    held_by_proxies,
)
from tests.aot.reader.held.places import HOLDERS, without

__all__ = [
    "HOLDERS",
    "held_by_containers",
    "held_by_names",
    "held_by_objects",
    "held_by_proxies",
    "without",
]
