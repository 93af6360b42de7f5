"""How objects of Python's own are made again from what they hold; ``built_objects`` asks.

A closure, an iterator, a slice: what a function returned of them in its capture holds tensors of
the capture. A recipe has the objects inside, and the function that puts them together.
"""

from __future__ import annotations

import functools
import gc
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import add_batch_dimension, ended_layer
from funcaot._torch.tensors.random.made_generators import REAL, MadeGenerator, with_state
from funcaot.aot.closure.children import VIEWS, base_of
from funcaot.aot.closure.lazy import is_iterator

__all__ = ["Recipe", "is_escaped", "recipe_of"]

# These share with others what they haven't handed out yet, or would come out as other classes.
_NOT_MADE = ("_grouper", "_tee", "groupby", "dict_", "odict_", "set_")


@dataclass(frozen=True, eq=False)
class Recipe:
    """How to make an object.

    Attributes:
        items: What it is made of.
        make: Takes these, and returns it.
        contents: What is put into it then, which may have the object itself in it.
        fill: Takes the object and these.
    """

    items: tuple[Any, ...]
    make: Callable[..., Any]
    contents: tuple[Any, ...] = ()
    fill: Callable[..., None] | None = None


def recipe_of(value: Any, made: Collection[types.CodeType]) -> Recipe | None:
    """How to make an object of Python's own again; None for any other one.

    Args:
        value: The object, which is new.
        made: Code of functions that are new where they are met.
    """
    kind = type(value)
    if is_escaped(value):
        return _of_escaped(value)
    if kind is weakref.ref and isinstance(target := value(), torch.Tensor):
        return Recipe((target,), weakref.ref)  # Recurrent layers know their weights by these.
    if kind is MadeGenerator:
        return Recipe((value.get_state(),), with_state(value.device))
    if kind is REAL:
        return Recipe((), value.clone_state)
    if kind is slice:
        return Recipe((value.start, value.stop, value.step), slice)
    if kind in (set, frozenset):
        return Recipe(tuple(value), lambda *items: kind(items))
    if kind is functools.partial:
        return Recipe((value.func, value.args, value.keywords), _partial)
    if kind is types.MethodType:
        return Recipe((value.__func__, value.__self__), types.MethodType)
    if kind is types.FunctionType:
        return _of_function(value) if value.__code__ in made else None
    if kind is types.MappingProxyType:
        return Recipe((gc.get_referents(value)[0],), types.MappingProxyType)
    if isinstance(value, VIEWS):
        (mapping,) = gc.get_referents(value)
        name = kind.__name__.rpartition("_")[2]
        return Recipe((mapping,), getattr(base_of(mapping), name))
    return _of_iterator(value) if is_iterator(value) else None


def is_escaped(value: Any) -> bool:
    """Whether a value is a tensor of a transform that has ended."""
    return isinstance(value, torch.Tensor) and ended_layer(value) is not None


def _of_escaped(value: torch.Tensor) -> Recipe | None:
    """The tensor inside; what ``vmap`` left of a batch is as unusable as it is in eager."""
    layer = ended_layer(value)
    if layer is None:
        return None
    inner, level, dim = layer
    if dim is None:  # Torch, too, takes such a one for the tensor inside.
        return Recipe((inner,), lambda tensor: tensor)
    return Recipe((inner,), lambda tensor: add_batch_dimension(tensor, dim, level))


def _partial(func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    return functools.partial(func, *args, **keywords)


def _of_iterator(value: Any) -> Recipe | None:
    """From where it stands; None for one that says that to nobody."""
    kind = type(value)
    if isinstance(value, types.GeneratorType) or kind.__name__.startswith(_NOT_MADE):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made, arguments, *state = value.__reduce__()
    except TypeError:
        return None
    state = [each for each in state if each is not None]

    def again(*items: Any) -> Any:
        iterator = made(*items[: len(arguments)])
        if state:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                iterator.__setstate__(items[-1])
        return iterator

    return Recipe((*arguments, *state), again)


@dataclass(frozen=True, eq=False)
class Outline:
    """What a function is besides the objects that it holds."""

    code: types.CodeType
    namespace: dict[str, Any]
    names: tuple[str, str]

    def __call__(self, defaults: Any, keywords: Any, own: Any, *cells: types.CellType) -> Any:
        """Make the function."""
        name, full_name = self.names
        made = types.FunctionType(self.code, self.namespace, name, defaults, cells)
        made.__kwdefaults__, made.__qualname__ = keywords, full_name
        made.__dict__.update(own)
        for key in ("__doc__", "__module__", "__annotations__"):
            if key in own:
                setattr(made, key, made.__dict__.pop(key))
        return made


def _of_function(function: types.FunctionType) -> Recipe:
    own = {key: getattr(function, key) for key in ("__doc__", "__module__", "__annotations__")}
    names = (function.__name__, function.__qualname__)
    outline = Outline(function.__code__, function.__globals__, names)
    parts = (function.__defaults__, function.__kwdefaults__, {**vars(function), **own})
    return Recipe((*parts, *(function.__closure__ or ())), outline)
