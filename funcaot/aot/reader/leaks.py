"""Tensors that a function keeps for itself while it is captured: later calls find no values."""

from __future__ import annotations

import warnings

from funcaot._torch.tracing import tracing
from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.where import path_of
from funcaot.errors import LeakWarning


def warn_of_leaks(environment: Environment, name: str) -> None:
    """Warn once, naming the places, if the environment holds a tensor of the capture.

    Args:
        environment: What the function can reach, scanned after the capture.
        name: The user's function.
    """
    places = [
        path_of(environment, identity)
        for identity, value in environment.objects.items()
        if tracing.is_symbolic(value)
    ]
    if places:
        warnings.warn(
            f"{name} keeps a tensor of its capture at {', '.join(sorted(places))}. Python code "
            "runs once per compilation, so what is kept has no value and later calls don't change "
            "it. Return the tensor instead, or copy it into a buffer (buffer.copy_(x)).",
            LeakWarning,
            stacklevel=2,
        )
