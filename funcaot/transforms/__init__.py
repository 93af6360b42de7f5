"""One rule of the operator per file; importing this package registers them all."""

from __future__ import annotations

from funcaot.transforms import (  # noqa: F401
    base,
    fake,
    functionalize,
    grad,
    jvp,
    legacy_batching,
    tracing,
    vmap,
)
from funcaot.transforms.forms import keywords, old_style, plain_call  # noqa: F401
