"""Settings of the process that decide what is captured and compiled, as text.

``pipeline`` notes them with what it makes; ``saved`` compares them, since a program may be written
to a file, or found in one, under other settings than it was made under. Some are a thread's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from funcaot import config
from funcaot._torch.inductor.generated import settings_of_inductor
from funcaot._torch.tensors.guards import settings_of_ops

# What is only about caches and checks changes no program.
_OPTIONS = (
    "fallback_random",
    "exact_special_values",
    "specialize_on_values",
    "check_aliases",
    "without_patches",
)


def settings_now(compiler: str) -> dict[str, str]:
    """The settings at this moment, by the name that a message has for them.

    Args:
        compiler: The backend; options of a compiler that isn't used say nothing.
    """
    options = dataclasses.asdict(config.get())
    ours = {name: options[name] for name in _OPTIONS}
    return {
        "the number of threads": str(torch.get_num_threads()),
        "the configuration of funcaot": _text(ours),
        "the configuration of Inductor": settings_of_inductor() if compiler == "inductor" else "",
        "settings of torch": _text(settings_of_ops()),
    }


def _text(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
