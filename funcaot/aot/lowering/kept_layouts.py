"""Layouts of what a forward keeps: the compiler chooses them, and backwards are compiled for them.

Note [Layouts of residuals]: a residual is traced with the strides that eager would give it. A
compiler may compute it in another layout (convolutions run on channels last), and nobody but the
backward sees it, so the forward doesn't copy it back. A backward compiles for the layouts that its
first call brings; where a graph isn't compiled, or means another thing for other strides, what was
kept gets the traced layout first.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.inductor.inductor import FREE_LAYOUTS
from funcaot._torch.inductor.rigid_kernels import RIGID_KERNELS
from funcaot._torch.levels import functorch
from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tracing import fake_values
from funcaot.aot.graph import graphs
from funcaot.aot.graph.layout import Layout, restrided
from funcaot.aot.graph.tensor_spec import is_dense, spec_of

aten = torch.ops.aten
_REINTERPRETING = {aten.view.dtype, aten.view_as_complex.default}
# Without a copy, they look at strides; the others look at elements.
_RESHAPES = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}


def free_layouts(module: fx.GraphModule, outputs: Collection[int]) -> None:
    """Let the compiler choose the layouts of some outputs."""
    _output(module).meta[FREE_LAYOUTS] = frozenset(outputs)


def has_free_layout(module: fx.GraphModule, output: int) -> bool:
    """Whether the compiler chooses the layout of an output."""
    return output in _output(module).meta.get(FREE_LAYOUTS, frozenset())


def pass_on(before: fx.GraphModule, after: fx.GraphModule) -> None:
    """Give a graph with the same outputs the same freedom."""
    _output(after).meta[FREE_LAYOUTS] = _output(before).meta.get(FREE_LAYOUTS, frozenset())


def chosen(module: fx.GraphModule, operands: Mapping[int, torch.Tensor]) -> dict[int, Layout]:
    """The layouts to compile a graph for, where they aren't those that it was traced with.

    Args:
        module: The graph.
        operands: What was kept for it, by position among its inputs.

    Returns:
        By position; nothing if the graph may mean another thing for other strides.
    """
    placeholders = graphs.inputs(module)
    found: dict[int, Layout] = {}
    for position, operand in operands.items():
        traced = graphs.value_of(placeholders[position])
        layout = _layout(operand)
        if layout is None or layout.shape != tuple(traced.shape):
            continue
        if not fake_values.is_fake(traced):
            # A value that isn't one tensor of the graph gets the layout that was traced.
            continue
        if not layout.fits(traced) and is_dense(layout.shape, layout.stride):
            found[position] = layout
    return {} if found and _is_rigid(module) else found


def relaid(module: fx.GraphModule, layouts: Mapping[int, Layout]) -> fx.GraphModule:
    """Change a graph's inputs to other layouts; what is computed from them is left as traced."""
    for position, node in enumerate(graphs.inputs(module)):
        layout = layouts.get(position)
        if layout is not None:
            value = fake_values.fake_strided(graphs.value_of(node), layout.stride)
            node.meta = {**node.meta, "val": value}
    return module


def target_for(target: Any) -> Any:
    """An op that does the same for operands of any layout."""
    return _RESHAPES.get(target, target)


def with_traced_layouts(
    module: fx.GraphModule, outputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """A decomposed or relaid graph's outputs with the strides that the graph was traced with."""
    output: Any = _output(module)
    hidden = output.meta.get(FREE_LAYOUTS, frozenset())
    return [
        made if index in hidden else as_traced_value(made, graphs.value_of(node))
        for index, (made, node) in enumerate(zip(outputs, output.args[0], strict=True))
    ]


def as_traced_value(made: Any, traced: Any) -> Any:
    """A value with the strides of another one, if they are known numbers and leave no gaps."""
    if not (isinstance(made, torch.Tensor) and isinstance(traced, torch.Tensor)):
        return made
    if made.layout is not torch.strided or traced.layout is not torch.strided:
        return made
    spec = spec_of(traced)
    if spec_of(made).stride == spec.stride or not is_dense(spec.shape, spec.stride):
        return made
    if not all(isinstance(number, int) for number in (*spec.shape, *spec.stride)):
        return made
    fits = Layout(spec.shape, spec.stride).fits(made)
    return made if fits else _ordered(made, spec.stride)


def reads_strides(node: fx.Node) -> bool:
    """Whether a node's result depends on the strides of what it reads."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    target = node.target
    if isinstance(target, OpOverload):
        rigid = target in _REINTERPRETING or target in RIGID_KERNELS
        return rigid or "as_strided" in target.name()
    return graphs.is_function_node(node)


def traced_layouts(module: fx.GraphModule, positions: Collection[int]) -> dict[int, Layout | None]:
    """The layouts that some of a graph's inputs were traced with; None for those without one."""
    placeholders = graphs.inputs(module)
    return {each: _layout(graphs.value_of(placeholders[each])) for each in positions}


def as_traced(
    layouts: Mapping[int, Layout | None], operands: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Operands of which those that were kept have the layouts that a graph was traced with."""
    changed: list[torch.Tensor] | None = None
    for position, layout in layouts.items():
        operand = operands[position]
        if (
            layout is None
            or type(operand) is not torch.Tensor
            or functorch.is_functorch_wrapped_tensor(operand)
        ):
            continue
        if tuple(operand.shape) == layout.shape and not layout.fits(operand):
            changed = list(operands) if changed is None else changed
            changed[position] = restrided(operand, layout)
    return operands if changed is None else changed


def _output(module: fx.GraphModule) -> fx.Node:
    return next(iter(reversed(module.graph.nodes)))


def _layout(tensor: Any) -> Layout | None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    return Layout(tuple(tensor.shape), tuple(tensor.stride()))


def _is_rigid(module: fx.GraphModule) -> bool:
    """Whether running the graph on operands of other strides may compute something else."""
    for node in module.graph.nodes:
        if node.op == "output":
            results: Any = node.args[0]
            specs = [spec_of(graphs.value_of(item)) for item in results]
            if not all(is_dense(spec.shape, spec.stride) for spec in specs):
                return True
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, OpOverload) or graphs.is_random(node):
            return True
        if reads_strides(node):
            return True
    return False


def _ordered(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A tensor with dense strides, copied if it has others."""
    if tensor.stride() == tuple(stride):
        return tensor
    order = sorted(range(tensor.dim()), key=lambda dim: (-stride[dim], -tensor.shape[dim]))
    inverse = [order.index(dim) for dim in range(tensor.dim())]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)
