"""Which inputs a compiled graph may write to: those of which no read can come after the write.

Note [Proof of writes]: a graph that ends with copies into its inputs is right as it stands. A
compiler changes it: it leaves out a clone of what is overwritten, or lets an op that updates part
of a tensor work in the input itself, before the graph's end. So an input is written by the graph
only if both of these do no harm.

- Nobody's new value, and no result, may turn out to be a written input itself, or part of it, once
  ops are left out that change nothing: views, clones, ``x + 0``.
- A new value depends on an input that is written only at the same position, as an optimizer's step
  does, or through a reduction or product, which is done before its result is used.
- No op of an unknown kind reads an input that is written. One that updates part of it does if it
  is all that reads what was there before, and nothing that it writes comes from there.

All else is left to the epilogue, after the graph. An interpreter leaves nothing out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.graph import graphs

aten = torch.ops.aten
_Nodes = frozenset[fx.Node]
_NONE: _Nodes = frozenset()

# Their result has the elements of what they read.
_COPIES = frozenset(
    [
        "clone",
        "copy",
        "_to_copy",
        "contiguous",
        "convert_element_type",
        "expand_copy",
        "view_copy",
        "cat",
        "stack",
        "repeat",
        "constant_pad_nd",
        "flip",
        "roll",
        "index",
        "index_select",
        "gather",
        "take",
        "_unsafe_view",
        "_unsafe_index",
        "reshape",
        "embedding",
        "device_put",
        "lift_fresh_copy",
        "where",
    ]
)
# These work element by element, though torch doesn't tag them so.
_ELEMENTWISE = frozenset(["copy", "_to_copy", "convert_element_type", "fma", "device_put"])
_REDUCTIONS = frozenset(
    [
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "var",
        "var_mean",
        "std",
        "std_mean",
        "any",
        "all",
        "argmax",
        "argmin",
        "norm",
        "logsumexp",
        "max",
        "min",
        "linalg_vector_norm",
        "aminmax",
        "count_nonzero",
    ]
)
_ADDING_PRODUCTS = frozenset(["addmm", "baddbmm", "addmv"])
_PRODUCTS = _ADDING_PRODUCTS | {
    "mm",
    "bmm",
    "mv",
    "dot",
    "convolution",
    "convolution_backward",
    "linear",
}
_LIKE = frozenset(["zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_full"])
_SCATTERS = frozenset(
    [
        "slice_scatter",
        "select_scatter",
        "diagonal_scatter",
        "index_put",
        "_unsafe_index_put",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_copy",
        "index_add",
        "index_fill",
    ]
)
_INVERSES = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
# No op of theirs leaves its operand as it is.
_CHANGING = frozenset(
    [
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "erf",
        "log1p",
        "expm1",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "logical_not",
    ]
)
# A reduction of fewer elements may be computed wherever its result is used.
_WHOLE = 16


@dataclass(frozen=True)
class _Facts:
    """What is known of one value, by the inputs that are written.

    Attributes:
        varies: Whether it depends on inputs or random numbers at all.
        lies: Inputs that it may be, or be a part of, once ops that change nothing are left out.
        near: Inputs that it depends on at the same position only.
        far: Inputs that it depends on at other positions, unless all of it is computed first.
    """

    varies: bool = False
    lies: _Nodes = _NONE
    near: _Nodes = _NONE
    far: _Nodes = _NONE

    @property
    def read(self) -> _Nodes:
        """All inputs that it is computed from where it is used."""
        return self.near | self.far


def provable(
    module: fx.GraphModule, pairs: Sequence[tuple[int, int]], kept: Iterable[int]
) -> tuple[tuple[int, int], ...]:
    """The writes that a compiler can't make wrong.

    Args:
        module: The graph as the compiler gets it, without the writes.
        pairs: Position of an input, and of the output that would be written into it.
        kept: Positions of the outputs that are returned in any case.

    Returns:
        Some of the pairs.
    """
    inputs = graphs.inputs(module)
    output: Any = next(iter(reversed(module.graph.nodes)))
    values = output.args[0]
    writes = {inputs[position]: values[index] for position, index in pairs}
    results = {values[index] for index in kept}
    while writes:
        refused = _Proof(module, writes).refused(results)
        if not refused:
            break
        results.update(writes[target] for target in refused)
        writes = {target: value for target, value in writes.items() if target not in refused}
    return tuple(pair for pair in pairs if inputs[pair[0]] in writes)


class _Proof:
    """One pass over a graph, for some writes."""

    def __init__(self, module: fx.GraphModule, writes: dict[fx.Node, fx.Node]) -> None:
        self._writes = writes
        self._touched: set[fx.Node] = set()
        self._updated: set[fx.Node] = set()
        self._facts: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op != "output":
                self._facts[node] = self._of(node)

    def refused(self, results: Iterable[fx.Node]) -> set[fx.Node]:
        """Inputs whose write isn't proved."""
        found = set(self._touched)
        for node in results:
            found |= self._single(node).lies
        for target, value in self._writes.items():
            facts = self._single(value)
            found |= facts.far
            others = facts.lies - {target}
            if others:
                found |= others | {target}
        return found | {target for target in self._updated if not self._is_updated_alone(target)}

    def _single(self, node: fx.Node) -> _Facts:
        facts = self._facts[node]
        return facts if isinstance(facts, _Facts) else _together(facts)

    def _of(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            if node not in self._writes:
                return _Facts(varies=not graphs.is_size(node))
            return _Facts(True, frozenset([node]), frozenset([node]))
        if node.op == "get_attr":
            return _Facts(varies=True)
        operands = graphs.tensor_inputs(node)
        if node.target is graphs.GETITEM:
            facts = self._facts[operands[0]]
            return facts if isinstance(facts, _Facts) else facts[node.args[1]]
        if not isinstance(node.target, OpOverload):
            return self._unknown(node, operands)
        name = node.target._schema.name.partition("::")[2]
        if name.startswith("_foreach_"):
            return self._of_foreach(node, operands)
        return self._of_op(node, name, operands)

    def _of_op(self, node: fx.Node, name: str, operands: list[fx.Node]) -> _Facts:
        if name in _LIKE or not operands:
            return _Facts(varies=graphs.is_random(node))
        if name in _SCATTERS:
            return self._of_scatter(node, operands)
        if torch.Tag.pointwise in node.target.tags or name in _ELEMENTWISE:  # type: ignore[union-attr]
            return self._of_elements(node, name, operands, _shape(node))
        if graphs.is_view(node) or name in _COPIES:
            facts = _together(map(self._single, operands))
            return replace(facts, near=_NONE, far=_without_numbers(facts.read))
        if name in _PRODUCTS or name.startswith("_scaled_dot_product"):
            return self._of_product(name, operands)
        if name in _REDUCTIONS:
            facts = _together(map(self._single, operands))
            whole = _size(operands[0]) >= _WHOLE * max(1, _size(node))
            far = _NONE if whole else _without_numbers(facts.read)
            return _Facts(facts.varies, _NONE if whole else facts.lies, _NONE, far)
        return self._unknown(node, operands)

    def _of_elements(
        self, node: fx.Node, name: str, operands: list[fx.Node], shape: tuple[int, ...]
    ) -> _Facts:
        facts = [self._single(operand) for operand in operands]
        near, far = _NONE, _NONE
        for fact, operand in zip(facts, operands, strict=True):
            same = _shape(operand) == shape
            near |= fact.near if same else _NONE
            far |= fact.far if same else fact.far | _without_numbers(fact.near)
        varying = {operand for operand in operands if self._single(operand).varies}
        computes = len(varying) > 1 or name in _CHANGING or _has_number(node)
        if name in _COPIES:
            # Of its condition, `where` has no elements; a compiler may know which side is taken.
            computes = False
        lies = _NONE if computes else _together(facts).lies
        return _Facts(bool(varying) or graphs.is_random(node), lies, near, far)

    def _of_product(self, name: str, operands: list[fx.Node]) -> _Facts:
        varies = any(self._single(operand).varies for operand in operands)
        # What is added to a product may be added where it is used.
        added = self._single(operands[0]).read if name in _ADDING_PRODUCTS else _NONE
        return _Facts(varies, far=_without_numbers(added))

    def _of_foreach(self, node: fx.Node, operands: list[fx.Node]) -> Any:
        """An op on lists: element by element of each, or a reduction of each."""
        lists = [item for item in node.args if isinstance(item, list | tuple)]
        lists = [item for item in lists if item and isinstance(item[0], fx.Node)]
        loose = [item for item in node.args if isinstance(item, fx.Node)]
        elementwise = not any(word in str(node.target) for word in ("norm", "max.default"))
        if not lists or not elementwise or len({len(item) for item in lists}) > 1:
            return self._unknown(node, operands)
        values = graphs.value_of(node)
        return [
            self._of_elements(node, "", [*group, *loose], tuple(value.shape))
            for group, value in zip(zip(*lists, strict=True), values, strict=True)
        ]

    def _of_scatter(self, node: fx.Node, operands: list[fx.Node]) -> _Facts:
        target = node.args[0]
        rest = [operand for operand in operands if operand is not target]
        own = self._single(target) if isinstance(target, fx.Node) else _Facts()
        others = _together(map(self._single, rest))
        self._updated |= own.lies | others.lies
        far = _without_numbers((own.read | others.read) - own.lies)
        return _Facts(True, own.lies | others.lies, _NONE, far)

    def _unknown(self, node: fx.Node, operands: list[fx.Node]) -> _Facts:
        facts = _together(map(self._single, operands))
        self._touched |= facts.lies
        return _Facts(facts.varies or graphs.is_random(node), far=facts.read)

    def _is_updated_alone(self, target: fx.Node) -> bool:
        """Whether what an input was is read by nothing but the ops that update it in part."""
        family = [node for node in self._facts if target in self._single(node).lies]
        final = self._writes[target]
        after = {final}
        for node in family:
            if not _is_scatter(node) and after.intersection(graphs.tensor_inputs(node)):
                after.add(node)
        for node in family:
            if node in after:
                continue
            for user in node.users:
                if user.op == "output":
                    return False
                if graphs.is_view(user) or user.target is graphs.GETITEM:
                    continue
                if not (_is_scatter(user) and _updates(user, node)):
                    return False
        return True


def _is_scatter(node: fx.Node) -> bool:
    return (
        isinstance(node.target, OpOverload)
        and node.target._schema.name.partition("::")[2] in _SCATTERS
    )


def _updates(node: fx.Node, operand: Any) -> bool:
    """Whether an op updates an operand, or puts a view of one back after it was updated."""
    if node.args.count(operand) + list(node.kwargs.values()).count(operand) != 1:
        return False
    if node.args[0] is operand:
        return True
    inverse: Callable[..., Any] | None = _INVERSES.get(node.target)  # type: ignore[arg-type]
    inner = operand
    while _is_scatter(inner):
        inner = inner.args[0]
    return (
        inverse is not None
        and node.args[1] is operand
        and inner.target is inverse
        and inner.args[0] is node.args[0]
        and tuple(inner.args[1:]) == tuple(node.args[2:])
        and inner.kwargs == node.kwargs
    )


def _together(facts: Iterable[_Facts]) -> _Facts:
    varies, lies, near, far = False, _NONE, _NONE, _NONE
    for fact in facts:
        varies |= fact.varies
        lies, near, far = lies | fact.lies, near | fact.near, far | fact.far
    return _Facts(varies, lies, near, far)


def _without_numbers(nodes: Iterable[fx.Node]) -> _Nodes:
    """Without tensors of one element: reading that is reading all there is."""
    return frozenset(node for node in nodes if _size(node) != 1)


def _has_number(node: fx.Node) -> bool:
    """Whether an op computes with a number that changes what it is applied to."""
    name = str(node.target)
    if not any(word in name for word in ("add", "sub", "mul", "div")):
        return False
    numbers = [item for item in node.args if isinstance(item, int | float)]
    return len(numbers) == 1 and len(node.kwargs) == 0 and abs(numbers[0]) not in (0, 1)


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = graphs.value_of(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _size(node: fx.Node) -> int:
    value = graphs.value_of(node)
    if isinstance(value, list | tuple):
        return sum(math.prod(item.shape) for item in value if isinstance(item, torch.Tensor))
    return math.prod(_shape(node))
