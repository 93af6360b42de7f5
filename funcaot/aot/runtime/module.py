"""A compiled module: the same module, with a call that runs compiled graphs."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from funcaot._torch.distributed import wrapped
from funcaot.aot.graph.policy import POLICIES, Policy
from funcaot.aot.runtime.artifact import Saved, save
from funcaot.aot.runtime.compiled import CompiledFunction, compiled_function
from funcaot.aot.runtime.once_differentiated import (
    FULLY_SHARDED,
    STATIC_GRAPH,
    in_static_graph,
    refuse_second,
)
from funcaot.aot.runtime.warm_up import warm_sharded
from funcaot.backends.compiler import Compiler
from funcaot.errors import UnsupportedError

COMPILED = "_funcaot_compiled"
UNITS = "_funcaot_units"
_ORIGINAL = "_funcaot_original"
_Again: TypeAlias = tuple[Callable[..., torch.nn.Module], tuple[Any, ...]]


def compiled_module(
    module: torch.nn.Module,
    compiler: Compiler,
    policy: Policy = POLICIES["balanced"],
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
) -> torch.nn.Module:
    """A module that shares everything with ``module`` but how it is called.

    Its class is a subclass of the module's and its attributes are the same dictionary, so
    parameters, buffers, ``state_dict``, hooks, ``train``, ``eval`` and ``to`` are shared.

    Args:
        module: The module to compile; it stays as it is. Of a compiled one, what was compiled.
        compiler: The backend.
        policy: What a backward may compute again.
        dynamic: Which sizes of arguments programs leave open.
        fullgraph: Whether a call that can't be captured is an error.
    """
    module = vars(type(module)).get(_ORIGINAL, module)
    name = type(module).__name__
    members = {
        "__call__": _call,
        "__init_subclass__": classmethod(_refuse_subclass),
        _ORIGINAL: module,
        COMPILED: compiled_function(ModuleCall(module), compiler, name, policy, dynamic, fullgraph),
    }
    return sharing(module, members, (compiled_module, (compiler, policy, dynamic, fullgraph)))


def sharing(
    module: torch.nn.Module, members: dict[str, Any], again: _Again | None = None
) -> torch.nn.Module:
    """An object of a subclass of a module's class, with the same attributes.

    Args:
        module: The module.
        members: What the subclass has of its own.
        again: What makes the same of another module, and what it takes besides. So a copy is one
            of a copy of the module; it is also saved and warmed up as a compiled function is.
    """
    original = type(module)
    if again is not None:
        make, settings = again
        members = {
            "__copy__": lambda self: make(copy.copy(module), *settings),
            "__deepcopy__": lambda self, memo: make(copy.deepcopy(module, memo), *settings),
            "__reduce_ex__": lambda self, protocol: (make, (module, *settings)),
            **methods_for(original),
            **members,
        }
    names = ("__module__", "__qualname__", "__doc__")
    members = {**{name: getattr(original, name) for name in names}, **members}
    kind = type(original.__name__, (original,), members)
    result = object.__new__(kind)
    object.__setattr__(result, "__dict__", module.__dict__)
    return result


def compiled_of(module: torch.nn.Module) -> CompiledFunction | None:
    """What runs when a compiled module is called; None for an ordinary module."""
    return getattr(type(module), COMPILED, None)


def functions_of(module: torch.nn.Module) -> tuple[CompiledFunction, ...]:
    """What runs when a compiled module is called: one, or that of each unit of ``fully_shard``."""
    units: tuple[CompiledFunction, ...] | None = getattr(type(module), UNITS, None)
    if units is not None:
        return units
    function = compiled_of(module)
    return () if function is None else (function,)


class ModuleCall:
    """The original module's call, as a function to capture.

    Attributes:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.__name__ = type(module).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)


class ForwardCall:
    """A module's ``forward`` without its hooks, as a function to capture.

    Attributes:
        module: The module.
        forward: The method's function; a class that is put before the module's may have another.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.forward = module, type(module).forward
        self.__name__ = type(module).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return self.forward(self.module, *args, **kwargs)


def hand_over_gradients(function: CompiledFunction, limits: tuple[int, ...]) -> None:
    """Hand gradients to autograd before a backward has ended (see Note [Early gradients]).

    Args:
        function: Whose backwards do that from now on.
        limits: Bytes of the groups in which they do; the last is for all that follow.
    """
    # Files hold whole backwards, so all ranks run these.
    if function.artifacts is None and function.settings.handed_over.limits != limits:
        function.settings.handed_over.limits = limits
        function._cache.drop_generated()


def _call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    function = getattr(type(self), COMPILED)
    parallel: Any = wrapped.DistributedDataParallel._active_ddp_module
    if parallel is None:
        return function(*args, **kwargs)
    hand_over_gradients(function, wrapped.bucket_limits(parallel))
    results = function(*args, **kwargs)
    if in_static_graph():
        return refuse_second(results, STATIC_GRAPH, type(self).__name__)
    return results


def _save(self: torch.nn.Module, path: str | os.PathLike[str]) -> Saved:
    """Write the programs that exist to a file (see ``CompiledFunction.save``)."""
    return save(path, [entry for function in functions_of(self) for entry in function.entries])


def _warm_up(self: torch.nn.Module, *args: Any, orders: int = 1, **kwargs: Any) -> None:
    """Compile what a call will need (see ``CompiledFunction.warm_up``).

    Under ``fully_shard`` the whole module is called, with its hooks.
    """
    if wrapped.is_sharded(self):
        warm_sharded(self, args, kwargs, orders)
        return
    getattr(type(self), COMPILED).warm_up(*args, orders=orders, **kwargs)


def methods_for(original: type) -> dict[str, Callable[..., Any]]:
    """What a compiled module has besides, where its class has nothing of that name."""
    methods = {"save": _save, "warm_up": _warm_up}
    return {name: method for name, method in methods.items() if not hasattr(original, name)}


def _refuse_subclass(cls: type, **kwargs: Any) -> None:
    """What changes a module's class (``parametrize``) would change this one of two only.

    ``fully_shard`` may: its hooks run around what is compiled.
    """
    base: Any = next(kind for kind in cls.__mro__ if COMPILED in vars(kind))
    if wrapped.belongs_to_fsdp(cls):
        settings = getattr(base, COMPILED).settings
        call = ForwardCall(base._funcaot_original)
        chosen = settings.policy, settings.dynamic, settings.fullgraph
        function = compiled_function(call, settings.compiler, call.__name__, *chosen)
        function.artifacts = getattr(base, COMPILED).artifacts
        changed: Any = cls
        changed.__call__ = torch.nn.Module.__call__
        changed.forward = lambda self, *args, **kwargs: refuse_second(
            function(*args, **kwargs), FULLY_SHARDED, call.__name__
        )
        setattr(cls, COMPILED, function)
        return
    raise UnsupportedError(
        f"{base.__name__}, a class made for one compiled module, was subclassed; "
        "torch.nn.utils.parametrize does that when it is applied to a compiled module.",
        remedy="parametrize the module first and compile it then.",
    )
