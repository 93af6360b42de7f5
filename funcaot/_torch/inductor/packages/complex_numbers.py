"""Complex numbers in parts that a package can hold: a pass over the graphs that ``aoti`` compiles.

AOTInductor hands operations on complex tensors to torch's own, and their arguments to a file that
has no complex numbers, and whose reader stumbles over whole ones (``alpha=1`` of a difference). So
a tensor filled with a complex number is made of two real ones, and whole numbers become floats.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

aten = torch.ops.aten


class _InParts(CustomGraphPass):
    """The pass, after that of the user's."""

    def __init__(self, before: Callable[[fx.Graph], Any] | None) -> None:
        self._before = before

    def __call__(self, graph: fx.Graph) -> None:
        if self._before is not None:
            self._before(graph)
        for node in [*graph.nodes]:
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, torch.Tensor):
                if node.target in _FILLING and value.is_complex():
                    _fill(graph, node, value)
                elif any(map(_is_complex, (node, *node.all_input_nodes))):
                    _write_floats(node)

    def uuid(self) -> Any:
        return None if self._before is not None else get_hash_for_files((__file__,))


_FILLING: dict[Any, Callable[[fx.Node], tuple[Any, Any]]] = {
    aten.full.default: lambda node: (node.args[0], node.args[1]),
    aten.scalar_tensor.default: lambda node: ([], node.args[0]),
}


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _write_floats(node: fx.Node) -> None:
    """Whole numbers where any number may be, those of the operation's defaults too, as floats."""
    schema = getattr(node.target, "_schema", None)
    given = [*node.args]
    for position, argument in enumerate(() if schema is None else schema.arguments):
        if str(argument.type) != "number":
            continue
        at_place = position < len(given)
        value = (
            given[position] if at_place else node.kwargs.get(argument.name, argument.default_value)
        )
        if type(value) is int and float(value) == value:
            if at_place:
                given[position] = float(value)
            else:
                node.kwargs = {**node.kwargs, argument.name: float(value)}
    node.args = tuple(given)


def _fill(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> None:
    size, number = _FILLING[node.target](node)
    if not isinstance(number, int | float | complex):
        return
    parts: list[fx.Node] = []
    keywords = {"dtype": value.dtype.to_real(), "device": value.device}
    with graph.inserting_before(node):
        for part in (complex(number).real, complex(number).imag):
            made = graph.call_function(aten.full.default, (size, part), keywords)
            made.meta["val"] = torch.empty_like(value, dtype=value.dtype.to_real())
            parts.append(made)
        filled = graph.call_function(aten.complex.default, tuple(parts))
    filled.meta = dict(node.meta)
    node.replace_all_uses_with(filled)
    graph.erase_node(node)


@contextlib.contextmanager
def in_parts() -> Iterator[None]:
    """Inductor's graphs fill tensors with real numbers only."""
    from torch._inductor import config

    before: Any = config.post_grad_custom_post_pass
    with config.patch(post_grad_custom_post_pass=_InParts(before)):
        yield
