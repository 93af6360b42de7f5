"""The class of autograd Function that autograd sees of a compiled program; ``call`` makes them."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["function_class"]


def function_class(owner: Any) -> type[torch.autograd.Function]:
    """The Function class of a segment in one form.

    Args:
        owner: The segment, with the four rules as methods.
    """
    members = {
        "forward": staticmethod(owner.forward),
        "setup_context": staticmethod(owner.setup_context),
        "backward": staticmethod(owner.backward),
        "jvp": staticmethod(owner.jvp),
        "generate_vmap_rule": True,
        "funcaot_program": owner,
        "__module__": type(owner).__module__,
        "__doc__": f"The compiled program {owner.segment.name}.",
    }
    return type(owner.segment.name, (torch.autograd.Function,), members)
