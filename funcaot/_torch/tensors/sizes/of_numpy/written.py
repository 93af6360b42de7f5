"""Numbers of NumPy's that carry how they are computed, as `written_numbers`, which knows of these.

NumPy computes with them in each call: with its own rounding, classes and warnings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcaot._torch.tensors.sizes.number_log import SETTLED, settled
from funcaot._torch.tensors.sizes.open_floats import OpenFloat
from funcaot._torch.tensors.sizes.written_numbers import (
    KINDS,
    WRITTEN,
    WrittenFloat,
    WrittenInt,
    applied,
)
from funcaot.base.numpy_kinds import NUMPY_KINDS, double, is_numpy_float

__all__ = ["KINDS"]

# What a number itself or its class answers, whatever its value.
_OF_KIND = ("dtype", "ndim", "shape", "size", "itemsize", "nbytes")
# Functions of NumPy that give one number for one or two.
_UFUNCS = {name: each for name, each in vars(np).items() if isinstance(each, np.ufunc)}


def _array_ufunc(self: Any, ufunc: Any, method: str, *given: Any, **keywords: Any) -> Any:
    """What a function of NumPy makes of numbers, written down."""
    usual = method == "__call__" and not keywords and ufunc.nout == 1
    if usual and _UFUNCS.get(ufunc.__name__) is ufunc:
        places = ", ".join("{}" for _ in given)
        return applied(ufunc, f"numpy.{ufunc.__name__}({places})", *given)
    return getattr(ufunc, method)(*map(settled, given), **keywords)


def _array_ufunc_of_open(self: Any, ufunc: Any, method: str, *given: Any, **keywords: Any) -> Any:
    """What such a function makes of a number that a Function is given."""
    if method == "__call__" and not keywords and len(given) == 1 and not self.is_read:
        found = self.in_mathematics(ufunc.__name__, ())
        if type(found) is OpenFloat:
            return found.of_kind(double)
    return getattr(ufunc, method)(*map(settled, given), **keywords)


def _item(self: Any) -> Any:
    return applied(lambda number: number.item(), "{}.item()", self)


def _settling(kind: Any, name: str) -> Any:
    """A member that answers for the value of this call."""
    member = getattr(kind, name)
    if name in _OF_KIND:
        return property(lambda self: getattr(kind(0), name))
    if not callable(member):
        return property(lambda self: getattr(self.settle(), name))
    return lambda self, *args, **named: getattr(self.settle(), name)(*map(settled, args), **named)


def _class_for(kind: Any) -> Any:
    """What stands for numbers of a class."""
    base = WrittenFloat if is_numpy_float(kind) else WrittenInt
    members = {name: _settling(kind, name) for name in dir(kind) if not hasattr(base, name)}
    return type(f"Written_{kind.__name__}", (base,), {**members, "kind": kind, "item": _item})


for _each in (WrittenFloat, WrittenInt):
    setattr(_each, "__array_ufunc__", _array_ufunc)  # noqa: B010 (a type checker sees torch's)
setattr(OpenFloat, "__array_ufunc__", _array_ufunc_of_open)  # noqa: B010
for _kind in NUMPY_KINDS:
    KINDS[_kind] = _class_for(_kind)
    WRITTEN.add(KINDS[_kind])
SETTLED.update(WRITTEN)
