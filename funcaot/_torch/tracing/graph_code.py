"""Private names behind the source text that fx keeps of every graph module."""

from __future__ import annotations

import linecache
import weakref
from typing import Any

from torch import fx
from torch.fx.graph import CodeGen
from torch.fx.graph_module import _loader
from torch.fx.node import map_aggregate

from funcaot._torch.tensors.complex_constants import has_odd_constant, has_odd_constants


def forget_source_with(module: fx.GraphModule) -> fx.GraphModule:
    """Let the module's generated source go when the module does; fx keeps it for good.

    Complex numbers whose text isn't code for them are written in another way.

    Call it after each ``recompile``, which generates source anew.
    """
    if has_odd_constants(module) and not isinstance(module.graph._codegen, _ExactCode):
        module.graph.set_codegen(_ExactCode())
        module.recompile()
    key = type(module).forward.__code__.co_filename
    weakref.finalize(module, _forget, key).atexit = False
    return module


def _forget(key: str) -> None:
    _loader.eval_cache.pop(key, None)
    linecache.cache.pop(key, None)


class _Complex(complex):
    """A number whose text is code for it."""

    def __repr__(self) -> str:
        return f"complex({self.real!r}, {self.imag!r})"


class _ExactCode(CodeGen):
    """Writes complex numbers by their parts: ``repr`` has ``infj``, and loses signs of zeros."""

    def _gen_python_code(self, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        odd = [(node, node.args, node.kwargs) for node in nodes if has_odd_constant(node)]
        try:
            for node, given, named in odd:
                node.args = map_aggregate(given, _exact)  # type: ignore[assignment]
                node.kwargs = map_aggregate(named, _exact)  # type: ignore[assignment]
            return super()._gen_python_code(nodes, *args, **kwargs)
        finally:
            for node, given, named in odd:
                node.args, node.kwargs = given, named


def _exact(value: Any) -> Any:
    return _Complex(value) if type(value) is complex else value
