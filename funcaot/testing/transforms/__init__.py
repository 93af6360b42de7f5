"""The table of transforms.

To add one, write a function from ``Program`` to ``Program`` (what to run, and an oracle that does
not use funcaot) and list it in a ``TRANSFORMS`` tuple; compositions with all others follow.
"""

from __future__ import annotations

from funcaot.testing.transforms import batching, compiled, effects, forward, jacobians, reverse
from funcaot.testing.transforms.record import Transform

TABLE: dict[str, Transform] = {
    entry.name: entry
    for entry in (
        *reverse.TRANSFORMS,
        *forward.TRANSFORMS,
        *jacobians.TRANSFORMS,
        *batching.TRANSFORMS,
        *effects.TRANSFORMS,
        *compiled.TRANSFORMS,
    )
}
