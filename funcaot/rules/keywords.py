"""Keyword-only arguments of forward: a class in which they're constants."""

from __future__ import annotations

from typing import Any

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.tensors.sizes.number_log import all_settled
from funcaot.classes.class_cache import cache_of
from funcaot.classes.traits import origin_of

__all__ = ["with_keywords"]


def with_keywords(function: type, keywords: dict[str, Any]) -> type:
    """The Function with ``keywords`` filled in; operands, and so gradients, are positional."""
    keywords = all_settled(keywords)  # an open number is one of a capture
    cache = cache_of(function)
    try:
        key = ("keywords", *sorted(keywords.items()))
        if key in cache:
            return cache[key]
    except TypeError:  # a value that can't be hashed or ordered: a class for this call only
        return _bound(function, keywords)
    cache[key] = _bound(function, keywords)
    return cache[key]


def _bound(function: type, keywords: dict[str, Any]) -> type:
    # ctx, where forward takes it, is the first of the operands
    def forward(*operands: Any) -> Any:
        return function.forward(*operands, **keywords)

    namespace = {
        "forward": staticmethod(forward),
        "funcaot_origin": origin_of(function),
        "__module__": function.__module__,
    }
    return new_function_class(function.__name__, function, namespace)
