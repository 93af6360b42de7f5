"""Compiled modules that ``torch.distributed`` has wrapped; ``funcaot.compile`` calls `compiled`.

What a wrapper does around its module, it does as ever: it prepares its reducer, gathers parameters,
registers hooks. Only the module's own computation is compiled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from funcaot._torch.distributed import wrapped
from funcaot.aot.graph.policy import POLICIES, Policy
from funcaot.aot.runtime.compiled import CompiledFunction, compiled_function
from funcaot.aot.runtime.module import (
    COMPILED,
    UNITS,
    ForwardCall,
    ModuleCall,
    compiled_module,
    hand_over_gradients,
    methods_for,
    sharing,
)
from funcaot.aot.runtime.once_differentiated import (
    FULLY_SHARDED,
    STATIC_GRAPH,
    refuse_delayed,
    refuse_second,
)
from funcaot.backends.compiler import Compiler

__all__ = ["compiled"]

_UNIT = "_funcaot_unit"


def compiled(
    module: torch.nn.Module,
    compiler: Compiler,
    policy: Policy = POLICIES["balanced"],
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
) -> torch.nn.Module:
    """A module that shares everything with ``module`` but how it computes."""
    settings = (compiler, policy, dynamic, fullgraph)
    if isinstance(module, wrapped.DistributedDataParallel):
        return _data_parallel(module, settings)
    if wrapped.is_sharded(module):
        return _sharded(module, settings)
    return compiled_module(module, *settings)


def _function(call: Any, settings: tuple[Any, ...]) -> CompiledFunction:
    compiler, *chosen = settings
    return compiled_function(call, compiler, call.__name__, *chosen)


def _data_parallel(module: Any, settings: tuple[Any, ...]) -> torch.nn.Module:
    """The reducer is prepared and told of the outputs outside of the compiled program."""
    refuse_delayed(module)
    function = _function(ModuleCall(module.module), settings)

    def run(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        hand_over_gradients(function, wrapped.bucket_limits(self))
        results = function(*inputs, **kwargs)
        if self.static_graph and self.require_backward_grad_sync:
            return refuse_second(results, STATIC_GRAPH, function.settings.name)
        return results

    members = {"_run_ddp_forward": run, COMPILED: function}
    return sharing(module, members, (compiled, settings))


class _Compiled(threading.local):
    """The units that run compiled in this thread now, by ``id``."""

    units: dict[int, CompiledFunction] = {}


_now = _Compiled()


@contextlib.contextmanager
def _running(units: dict[int, CompiledFunction]) -> Iterator[None]:
    before = _now.units
    _now.units = {**before, **units}
    try:
        yield
    finally:
        _now.units = before


def _sharded(module: torch.nn.Module, settings: tuple[Any, ...]) -> torch.nn.Module:
    """Each unit that has no other inside is one program; what is around them runs as it is."""
    units = [each for each in module.modules() if wrapped.is_sharded(each)]
    innermost = [
        unit
        for unit in units
        if not any(wrapped.is_sharded(inside) for inside in unit.modules() if inside is not unit)
    ]
    functions = {id(unit): _function(ForwardCall(unit), settings) for unit in innermost}
    for unit in innermost:
        if unit is not module:
            _let_run_compiled(unit)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = functions.get(id(module))
        if own is not None:
            results = own(*args, **kwargs)
        else:
            with _running(functions):
                results = type(module).forward(module, *args, **kwargs)
        return refuse_second(results, FULLY_SHARDED, type(self).__name__)

    depth = wrapped.depth_of_original_class(type(module))
    members = {"forward": forward, "_orig_cls_mro_index": depth, **methods_for(type(module))}
    own = {COMPILED: functions.get(id(module)), UNITS: tuple(functions.values())}
    result = sharing(module, {**members, **own})
    wrapped.same_state(module, result)
    return result


def _let_run_compiled(unit: torch.nn.Module) -> None:
    """Give a unit a class whose forward runs compiled where a compiled module around it says so."""
    original: Any = type(unit)
    if getattr(original, _UNIT, False):
        return

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = _now.units.get(id(self))
        if function is None:
            return original.forward(self, *args, **kwargs)
        return refuse_second(function(*args, **kwargs), FULLY_SHARDED, function.settings.name)

    depth = wrapped.depth_of_original_class(original)
    members = {"forward": forward, "_orig_cls_mro_index": depth, _UNIT: True}
    unit.__class__ = type(original.__name__, (original,), members)
