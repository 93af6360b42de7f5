"""Ops that no table takes apart: ``lower`` records them, when it traces a graph again, with this.

Most ops of a graph come out of such a trace as they went in. On functional tensors each of them
takes a millisecond; here it runs on the fake tensor inside alone, and its node is made as ever. So
a value is what it would be, with its memory. What may come out in another way goes the usual way.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.eager_rules.eager_strides import lies_as_in_eager
from funcaot._torch.tracing.fake_values import is_fake, run_alone
from funcaot.aot.graph import graphs
from funcaot.aot.lowering import kept_layouts
from funcaot.aot.tape.tape import Tape

__all__ = ["PlainOps", "Recorded"]

aten = torch.ops.aten

# Inductor's table has these only for what is scaled.
_SUMS = frozenset({aten.add.Tensor, aten.sub.Tensor})
_VIEWS = frozenset(
    {
        *(aten.expand.default, aten.permute.default, aten.select.int, aten.slice.Tensor),
        *(aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.view.default),
    }
)
# Torch's own way to take these apart is one permutation.
_TURNED = frozenset({aten.t.default, aten.transpose.int})
_PLAIN = frozenset(
    {
        *(*_SUMS, *_VIEWS, aten.clone.default, aten.div.Tensor, aten.mul.Scalar, aten.mul.Tensor),
        *(aten.cos.default, aten.exp.default, aten.log.default, aten.neg.default),
        *(aten.pow.Tensor_Scalar, aten.reciprocal.default, aten.sigmoid.default),
        *(aten.sin.default, aten.sqrt.default, aten.tanh.default),
    }
)


@dataclass(frozen=True, eq=False)
class Recorded:
    """What stands for a node's value: a functional tensor is made of it where one is needed.

    Attributes:
        proxy: Its node in the new graph.
        value: The fake tensor.
    """

    proxy: fx.Proxy
    value: torch.Tensor

    def wrapped(self) -> torch.Tensor:
        """The value as other ops take it, while the tape records."""
        return tracing.to_functional(self.value)


class PlainOps:
    """Records the plain ops of one graph in the tape that traces it again."""

    def __init__(self, module: fx.GraphModule, tape: Tape, table: Mapping[Any, Any]) -> None:
        """Look whether the graph has nothing but ops that write to nothing, and no open sizes.

        Args:
            module: The graph.
            tape: What records it again.
            table: The ops that are taken apart.
        """
        self._tape = tape
        self._whole = tape.sizes is None and all(map(_writes_to_nothing, module.graph.nodes))
        self._ops = {op for op in _PLAIN if op in _SUMS or op not in table}
        self._ops |= {op for op in _TURNED if _is_torchs(table.get(op))}
        self._operands: dict[fx.Node, Recorded | None] = {}

    def record(self, node: fx.Node, values: dict[fx.Node, Any]) -> Recorded | None:
        """Record a node again, or None if it has to go the usual way.

        Args:
            node: The node.
            values: What was made of the nodes before it.
        """
        op = self._op(node)
        if op is None or any(map(kept_layouts.reads_strides, node.users)):
            return None
        operands = {source: self._operand(source, values) for source in node.all_input_nodes}
        found = {source: operand for source, operand in operands.items() if operand is not None}
        if not found or len(found) != len(operands):
            return None
        given = _arguments(node, found)
        made = None if given is None else _run(op, given, node, found)
        if made is None:
            return None
        standing: Any = lambda source: found[source].proxy  # noqa: E731 (fx's types want nodes)
        proxies = [map_arg(each, standing) for each in given or ()]
        tracer = self._tape.tracer
        name = tracer.graph._target_to_str(op.overloadpacket.__name__)  # type: ignore[union-attr]
        proxy = tracer.create_proxy("call_function", op, *proxies, name=name)
        tracing.track(made, proxy, tracer)
        self._operands[node] = Recorded(proxy, made)
        return self._operands[node]

    def _op(self, node: fx.Node) -> Any:
        """What stands for a node's op in the new graph; None if that isn't known."""
        op: Any = node.target
        if not self._whole or op not in self._ops:
            return None
        if op in _TURNED:
            return aten.permute.default
        scaled = op in _SUMS and node.kwargs
        inferred = op is aten.view.default and -1 in node.args[1]  # type: ignore[operator]
        return None if scaled or inferred else op

    def _operand(self, node: fx.Node, values: dict[fx.Node, Any]) -> Recorded | None:
        if node not in self._operands:
            self._operands[node] = self._inside(values[node])
        return self._operands[node]

    def _inside(self, value: Any) -> Recorded | None:
        """What a functional tensor stands for, if it looks as that does."""
        if not isinstance(value, tracing.FunctionalTensor):
            return None
        inner = tracing.functional_inner(value)
        if not _is_usual(inner) or inner.stride() != value.stride():
            return None
        proxy = tracing.plain_proxy(inner, self._tape.tracer)
        return None if proxy is None else Recorded(proxy, inner)


def _arguments(node: fx.Node, operands: dict[fx.Node, Recorded]) -> tuple[Any, Any] | None:
    """A node's arguments and keywords; those of the permutation that a transposed tensor is."""
    if node.target not in _TURNED:
        return node.args, node.kwargs
    source: Any = node.args[0]
    order = list(range(operands[source].value.dim()))
    if len(order) < 2:
        return None
    one, other = (0, 1) if node.target is aten.t.default else node.args[1:]
    order[one], order[other] = order[other], order[one]  # type: ignore[index]
    return (source, order), {}


def _run(
    op: Any, given: tuple[Any, Any], node: fx.Node, operands: dict[fx.Node, Recorded]
) -> torch.Tensor | None:
    """A node's value; None if eager's lies in another way, or the op isn't plain here."""
    args, kwargs = (map_arg(each, lambda source: operands[source].value) for each in given)
    mode = next(iter(operands.values())).value.fake_mode  # type: ignore[attr-defined]
    try:
        made = run_alone(op, args, kwargs, mode)
    except Exception:  # noqa: BLE001  (it fails once more, in the usual way)
        return None
    traced = graphs.value_of(node)
    if not (_is_usual(made) and is_fake(traced) and made.dtype == traced.dtype):
        return None
    return made if lies_as_in_eager(op, args, kwargs, made) else None


def _is_usual(value: Any) -> bool:
    """Whether it is a plain tensor; of one without elements, a view may have other strides."""
    return (
        is_fake(value)
        and value.layout is torch.strided
        and 0 not in value.shape
        and not (value.is_conj() or value.is_neg() or value.requires_grad)
    )


def _writes_to_nothing(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    return isinstance(node.target, OpOverload) and not node.target._schema.is_mutable


def _is_torchs(decomposed: Any) -> bool:
    return getattr(decomposed, "__module__", "").split(".")[0] == "torch"
