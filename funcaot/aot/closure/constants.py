"""Values that a program has as constants, and how a call compares them; for the reader.

A constant is a plain value, or a container of nothing else. Two constants are the same where no
code can tell them apart: ``1``, ``1.0`` and ``True`` are three, as are ``0.0`` and ``-0.0``, and an
equal tensor is none of them.
"""

from __future__ import annotations

import math
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from funcaot.aot.closure.contents import array_contents, has_contents

_SCALARS = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    range,
    type(...),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_EXACT = frozenset((*_SCALARS, slice))
_SEQUENCES = (tuple, list, deque, torch.Size)
_SETS = (set, frozenset)
_DICTIONARIES = (dict, OrderedDict, defaultdict, types.MappingProxyType)
_IMMUTABLE = (tuple, frozenset, torch.Size)
CONTAINERS = (*_SEQUENCES, *_SETS, *_DICTIONARIES)


def is_scalar(value: Any) -> bool:
    """Whether a value is a plain constant that isn't a container."""
    if type(value) is slice:
        return all(map(is_scalar, (value.start, value.stop, value.step)))
    return type(value) in _EXACT or is_numpy_number(value)


def is_setting(value: Any) -> bool:
    """Whether a value is a plain constant, or a container of nothing else.

    What is in such a container can't be changed but through the container.
    """
    if is_scalar(value):
        return True
    kind = type(value)
    if kind in _SEQUENCES or kind in _SETS:
        return all(map(is_immutable, value))
    if kind in _DICTIONARIES:
        return all(is_immutable(key) and is_immutable(item) for key, item in value.items())
    return False


def is_immutable(value: Any) -> bool:
    """Whether a value is a constant for good: a scalar, or a tuple and the like of such."""
    if is_scalar(value):
        return True
    return type(value) in _IMMUTABLE and all(map(is_immutable, value))


def is_numpy_number(value: Any) -> bool:
    """Whether a value is a number, a text or a time of NumPy's."""
    kind = type(value)
    return kind.__module__ == "numpy" and any(base.__name__ == "generic" for base in kind.__mro__)


def fingerprint(value: Any) -> Any:
    """A value that is equal to another one's exactly if the constants are the same."""
    kind = type(value)
    if kind is float:
        return (float, value.hex())
    if kind is complex:
        return (complex, value.real.hex(), value.imag.hex())
    if kind in _SEQUENCES or kind in _SETS:  # Equal sets may give their items in other orders.
        return (kind, *map(fingerprint, value))
    if kind in _DICTIONARIES:
        return (kind, *((fingerprint(key), fingerprint(item)) for key, item in value.items()))
    if kind is slice:
        return (slice, *map(fingerprint, (value.start, value.stop, value.step)))
    if kind is range:
        return (range, value.start, value.stop, value.step)
    if is_numpy_number(value):
        return (kind, str(value.dtype), value.tobytes())
    if has_contents(value):
        return array_contents(value)
    if kind in _EXACT:
        return (kind, value)
    return (kind, id(value))


def needs_fingerprint(value: Any) -> bool:
    """Whether ``==`` beside equal types isn't enough to tell two values apart."""
    kind = type(value)
    if kind is float:
        return value == 0 or math.isnan(value)
    if kind in (int, bool, str, bytes, type(None), torch.dtype, torch.device):
        return False
    if kind in (list, tuple):
        return any(type(item) in CONTAINERS or needs_fingerprint(item) for item in value)
    if kind is dict:
        return any(
            type(item) in CONTAINERS or needs_fingerprint(item) or type(key) is not str
            for key, item in value.items()
        )
    return True
