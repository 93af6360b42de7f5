"""One rule of the operator per file; importing this package registers them all."""

from __future__ import annotations

from funcaot.transforms import (  # noqa: F401
    base,
    fake,
    functionalize,
    grad,
    jvp,
    keywords,
    legacy_batching,
    old_style,
    plain_call,
    tracing,
    vmap,
)
