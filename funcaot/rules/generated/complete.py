"""A Function class with its missing derivative rule generated from the one it has."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.autograd.autograd import new_function_class
from funcaot.classes.class_cache import cache_of
from funcaot.classes.context import share_saved_tensors
from funcaot.classes.traits import (
    display_name,
    has_backward,
    has_jvp,
    has_vmap,
    may_generate,
    origin_of,
    reverse_rule,
)
from funcaot.rules.generated.backward_from_jvp import backward_from_jvp
from funcaot.rules.generated.jvp_from_backward import jvp_from_backward
from funcaot.rules.metadata import ATTRIBUTE, MaterializeObserver, attach, call_metadata
from funcaot.rules.operands.entered import fill

__all__ = ["completed"]


def completed(function: type) -> type:
    """Return ``function``, or a stand-in that has both ``backward`` and ``jvp``.

    The stand-in exists when one of the two rules is missing and the class allows it to be
    generated. Everything else about it is the user's.
    """
    reverse, forward = has_backward(function), has_jvp(function)
    needs_jvp = reverse and not forward and may_generate(function, "generate_jvp_rule")
    needs_backward = forward and not reverse and may_generate(function, "generate_backward_rule")
    if not needs_jvp and not needs_backward:
        return function
    cache = cache_of(function)
    if "completed" not in cache:
        cache["completed"] = _stand_in(function)
    return cache["completed"]


def _stand_in(function: type) -> type:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        observer = MaterializeObserver(ctx)
        fill(function, observer, inputs, output)
        share_saved_tensors(ctx)
        call = call_metadata(observer, inputs, output)
        attach(ctx, ATTRIBUTE, call, display_name(function))

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return backward_from_jvp(function, ctx, cotangents)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        return jvp_from_backward(function, ctx, tangents)

    namespace: dict[str, Any] = {
        "forward": staticmethod(function.forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(reverse_rule(function) if has_backward(function) else backward),
        "jvp": staticmethod(function.jvp if has_jvp(function) else jvp),
        "boxed_grads_call": getattr(function, "boxed_grads_call", False),
        "generate_vmap_rule": may_generate(function, "generate_vmap_rule"),
        "funcaot_origin": origin_of(function),
        "funcaot_forward_of": function,
        "__module__": function.__module__,
    }
    if has_vmap(function):
        namespace["vmap"] = staticmethod(function.vmap)
    return new_function_class(function.__name__, torch.autograd.Function, namespace)
