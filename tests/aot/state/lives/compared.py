"""Compares two worlds: values, gradients, strides, which things are one, and which share memory."""

from __future__ import annotations

import functools
import types
from collections import deque
from decimal import Decimal
from typing import Any

import torch

_PLAIN = (int, float, str, bool, type(None), torch.dtype, Decimal)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_KEPT = ("_v", "_parameters", "_buffers")


class Compared:
    """What differs between two things, as far as they were looked at."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self._there: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._memory: dict[tuple[str, int], int] = {}
        self._alive: list[Any] = []

    def add(self, one: Any, other: Any, path: str) -> None:
        """Look at two things that are to be alike."""
        if len(self.differences) > 3:
            return
        if type(one).__name__ != type(other).__name__:
            self._differ(path, f"{type(one).__name__} and {type(other).__name__}")
        elif isinstance(one, _PLAIN):
            close = isinstance(one, float) and abs(one - other) <= 1e-9 * max(1, abs(one))
            if one != other and not close:
                self._differ(path, f"{one!r} and {other!r}")
        elif isinstance(one, functools.partial):
            self.add(one.keywords, other.keywords, f"{path}.keywords")
        elif isinstance(one, types.FunctionType):
            self.add(one.__defaults__, other.__defaults__, f"{path}.__defaults__")
        elif not isinstance(one, _CODE) and not self._is_known(one, other, path):
            self._add_parts(one, other, path)

    def _is_known(self, one: Any, other: Any, path: str) -> bool:
        if id(one) not in self._there and id(other) not in self._back:
            self._there[id(one)], self._back[id(other)] = id(other), id(one)
            self._alive.append((one, other))
            return False
        same = self._there.get(id(one)) == id(other) and self._back.get(id(other)) == id(one)
        if not same and not isinstance(one, tuple):
            self._differ(path, "another object")
        return True

    def _add_parts(self, one: Any, other: Any, path: str) -> None:
        if isinstance(one, torch.Tensor):
            self._add_tensors(one, other, path)
        elif isinstance(one, dict):
            if [*map(str, one)] != [*map(str, other)]:
                self._differ(path, f"keys {[*one]} and {[*other]}")
                return
            for key, its in zip(one, other, strict=True):
                self.add(one[key], other[its], f"{path}[{key!r}]")
        elif isinstance(one, (list, tuple, deque)):
            if len(one) != len(other):
                self._differ(path, f"{len(one)} and {len(other)} items")
                return
            for index, (its, others) in enumerate(zip(one, other, strict=True)):
                self.add(its, others, f"{path}[{index}]")
        elif isinstance(one, set) and one != other:
            self._differ(path, f"{one} and {other}")
        for name in getattr(type(one), "__slots__", ()) if type(one).__name__ == "Slot" else ():
            self.add(getattr(one, name), getattr(other, name), f"{path}.{name}")
        if hasattr(one, "__dict__") and type(one).__module__ in ("funcaot_lives", "types"):
            self.add(_attributes(one), _attributes(other), f"{path}.")

    def _add_tensors(self, one: torch.Tensor, other: torch.Tensor, path: str) -> None:
        about = [
            (each.dtype, tuple(each.shape), each.stride(), each.requires_grad, each.is_leaf)
            for each in (one, other)
        ]
        if about[0] != about[1]:
            self._differ(path, f"{about[0]} and {about[1]}")
            return
        values = [each.detach().double() for each in (one, other)]
        if not torch.allclose(*values, rtol=1e-4, atol=1e-5, equal_nan=True):
            self._differ(path, f"{values[0].tolist()} and {values[1].tolist()}")
        here, there = (each.untyped_storage().data_ptr() for each in (one, other))
        if here and there:
            forth = self._memory.setdefault(("one", here), there) == there
            if not (self._memory.setdefault(("other", there), here) == here and forth):
                self._differ(path, "other memory")
        if one.is_leaf:
            self.add(one.grad, other.grad, f"{path}.grad")

    def _differ(self, path: str, what: str) -> None:
        self.differences.append(f"{path}: {what}")


def _attributes(thing: Any) -> dict[str, Any]:
    own = vars(thing)
    return {name: own[name] for name in own if not name.startswith("_") or name in _KEPT}
