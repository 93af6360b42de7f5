"""Graphs as data: those that run op by op, and a digest by which two graphs are compared."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from funcaot._torch.distributed.collectives import COLLECTIVES, load_ops, position_of_group
from funcaot._torch.distributed.groups import described_group
from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.saved.codec import Blobs, Data, scalar_data, scalar_from, tensor_from
from funcaot.aot.saved.errors import NotSavedError
from funcaot.aot.subclasses.distributed import structure_data
from funcaot.aot.subclasses.nodes import is_wrapped

# Namespaces of ops that torch itself and funcaot define.
_KNOWN_OPS = {"aten", "prims", "inductor", "funcaot", *COLLECTIVES}
# What graphs compute of sizes.
_OF_SIZES: dict[str, Any] = {
    **{f"operator.{name}": getattr(operator, name) for name in (
        "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "pos", "abs",
        "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_",
    )},
    **{f"math.{name}": getattr(math, name) for name in ("floor", "ceil", "trunc", "sqrt", "pow")},
    **{f"torch.{name}": getattr(torch, name) for name in (
        "sym_float", "sym_int", "sym_not", "sym_min", "sym_max", "sym_sum", "_sym_sqrt",
    )},
    **{f"builtins.{function.__name__}": function for function in (round, pow, max, min)},
}  # fmt: skip
_NAMES_OF_SIZES = {function: name for name, function in _OF_SIZES.items()}


def graph_data(module: fx.GraphModule, blobs: Blobs) -> Data:
    """A graph of torch's ops.

    Raises:
        NotSavedError: If it has anything else in it.
    """
    numbers: dict[fx.Node, int] = {}
    nodes: list[Data] = []
    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        if node.op == "placeholder":
            nodes.append(["placeholder"])
        elif node.op == "get_attr":
            nodes.append(["constant", blobs.tensor(_attribute(module, str(node.target)))])
        elif node.op == "output":
            nodes.append(["output", _argument_data(node.args[0], numbers)])
        else:
            args = _with_group(node, lambda name: _Group(blobs.group(name)))
            call = [_argument_data(part, numbers) for part in (args, node.kwargs)]
            nodes.append(["call", _target_data(node.target), *call])
    return nodes


class _Group(NamedTuple):
    """What stands for the name of a group, which is another one in another process."""

    number: int


def _with_group(node: fx.Node, put: Callable[[str], Any]) -> tuple[Any, ...]:
    """The arguments of a node, with something else for the name of a group."""
    place = position_of_group(node.target) if isinstance(node.target, OpOverload) else None
    if place is None or place >= len(node.args) or not isinstance(node.args[place], str):
        return node.args
    name = str(node.args[place])
    return (*node.args[:place], put(name), *node.args[place + 1 :])


def graph_from(
    data: Data, blobs: Mapping[str, bytes], groups: Sequence[str] = ()
) -> fx.GraphModule:
    """The graph that ``graph_data`` described.

    Args:
        data: The description.
        blobs: Bytes by digest.
        groups: The names that groups of ranks have in this process.
    """
    graph = fx.Graph()
    constants: dict[str, torch.Tensor] = {}
    nodes: list[Any] = []
    for kind, *parts in data:
        if kind == "placeholder":
            nodes.append(graph.placeholder(f"input_{len(nodes)}"))
        elif kind == "constant":
            name = f"_constant_{len(constants)}"
            constants[name] = tensor_from(parts[0], blobs)
            nodes.append(graph.get_attr(name))
        elif kind == "output":
            nodes.append(graph.output(_argument_from(parts[0], nodes, groups)))
        else:
            target, args, kwargs = parts
            args, kwargs = (_argument_from(part, nodes, groups) for part in (args, kwargs))
            nodes.append(graph.call_function(_target_from(target), args, kwargs))
    root = torch.nn.Module()
    for name, value in constants.items():
        root.register_buffer(name, value)
    return fx.GraphModule(root, graph)


def _attribute(module: fx.GraphModule, target: str) -> torch.Tensor:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise NotSavedError(f"a graph holds a {type(value).__qualname__}")
    return value


def _target_data(target: Any) -> str:
    if target is graphs.GETITEM:
        return "getitem"
    if isinstance(target, OpOverload) and target.namespace in _KNOWN_OPS:
        return str(target)
    if isinstance(target, Hashable) and target in _NAMES_OF_SIZES:
        return f"size {_NAMES_OF_SIZES[target]}"
    raise NotSavedError(f"a graph calls {getattr(target, '__name__', target)}")


def _target_from(name: str) -> Any:
    if name == "getitem":
        return graphs.GETITEM
    if name.startswith("size "):
        return _OF_SIZES[name.removeprefix("size ")]
    namespace, packet, overload = name.split(".")
    if namespace not in _KNOWN_OPS:
        raise TypeError(f"{name} is no op of torch's")
    if namespace in COLLECTIVES:
        load_ops()
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _argument_data(value: Any, numbers: Mapping[fx.Node, int]) -> Data:
    if isinstance(value, fx.Node):
        return {"node": numbers[value]}
    if isinstance(value, _Group):
        return {"group": value.number}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_argument_data(item, numbers) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _argument_data(item, numbers)] for key, item in value.items()]}
    return {"value": scalar_data(value)}


def _argument_from(data: Data, nodes: list[Any], groups: Sequence[str]) -> Any:
    ((kind, value),) = data.items()
    if kind == "node":
        return nodes[value]
    if kind == "group":
        return groups[value]
    if kind == "value":
        return scalar_from(value)
    if kind == "dict":
        return {key: _argument_from(item, nodes, groups) for key, item in value}
    items = [_argument_from(item, nodes, groups) for item in value]
    return tuple(items) if kind == "tuple" else items


def graph_digest(module: fx.GraphModule) -> str:
    """A digest of what a graph computes of inputs that look the same."""
    numbers: dict[fx.Node, int] = {}
    found = hashlib.sha256()
    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        parts = [node.op, _target(node, module)]
        if node.op == "placeholder":
            value = graphs.value_of(node)
            is_tensor = isinstance(value, torch.Tensor)
            parts = [node.op, _looks(value) if is_tensor else str(value)]
        args = _with_group(node, lambda name: repr(described_group(name)))
        parts += [_argument(args, numbers), _argument(node.kwargs, numbers)]
        found.update("\n".join(parts).encode())
    return found.hexdigest()


def _looks(value: torch.Tensor) -> str:
    """A tensor in words; a wrapper with what it consists of, as far as that can be described."""
    spec = spec_of(value).without_grad()
    if spec.structure is None:
        return str(spec)
    try:
        return f"{spec} {structure_data(spec.structure, str)}"
    except LookupError:
        return f"{spec} {spec.structure}"


def _target(node: fx.Node, module: fx.GraphModule) -> str:
    if node.op == "get_attr":
        value: Any = module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, torch.Tensor):
            # Its numbers came from code, which is compared.
            return str(spec_of(value))
        return type(value).__qualname__
    if is_wrapped(node):
        return f"{node.target} {_looks(graphs.value_of(node))}"
    if graphs.is_function_node(node):
        return getattr(node.target, "__name__", "") or type(node.target).__qualname__
    return str(node.target)


def _argument(value: Any, numbers: dict[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(item, numbers) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_argument(v, numbers)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        return _argument(("slice", value.start, value.stop, value.step), numbers)
    return f"{type(value).__name__} {value!r}"
