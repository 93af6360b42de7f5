"""What an artifact can't hold, refused by name before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors import artifacts
from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.capture.capture import Capture
from funcaot.aot.capture.facts import Fact
from funcaot.aot.graph import graphs
from funcaot.aot.segment.forward import Forward
from funcaot.errors import UnsupportedError

# Namespaces of ops that compiled code has without Python.
_COMPILED = ("aten", "prims", "prim", "inductor_prims", "quantized", "mkldnn")


def refuse_effects(forward: Forward, slots: Sequence[str], name: str) -> None:
    """Refuse a function that does something beside computing its result.

    Args:
        forward: Its program.
        slots: A name for each input of the capture.
        name: The function, for messages.

    Raises:
        UnsupportedError: It says what the function does.
    """
    captured, effects = forward.capture, forward.effects
    for mutation in effects.mutations:
        remedy = (
            "return the new value, and let the caller write it; call eval() on a module whose "
            "running statistics change."
        )
        if "requires_grad_" in str(mutation):
            remedy = (
                "pass an example that requires grad already, for which nothing is changed; or "
                "differentiate by x.detach().requires_grad_()."
            )
        raise _refused(f"{name} changes {_slot(slots, mutation.index)} ({mutation})", remedy)
    if captured.gradients is not None:
        raise _refused(
            f"{name} reads or writes `.grad`, or steps an optimizer",
            "return gradients (torch.autograd.grad, torch.func.grad).",
        )
    if forward.state is not None:
        changes = [*forward.state.changes, *(change for _, change in forward.state.in_arguments)]
        raise _refused(
            f"{name} stores what it computes ({'; '.join(map(str, changes))})",
            "return it.",
        )
    if effects.attached:
        raise _refused(f"{name} sets attributes or hooks on its results", "leave them out.")
    if captured.leaves_grad_mode is not None:
        raise _refused(f"{name} leaves grad mode switched", "switch it back inside.")
    looked_for = [(argument, (attribute,)) for argument, attribute in captured.absent]
    given = [(argument, dict(found)) for argument, found in forward.signature.attributes]
    for argument, attributes in (*looked_for, *given):
        for attribute in attributes:
            if not attribute.startswith("_"):
                raise _refused(
                    f"{name} may read the attribute {attribute!r} of "
                    f"{_argument(captured, slots, argument)}, and looks at what no artifact sees",
                    "pass a tensor without attributes, and what they hold as arguments.",
                )
    for fact in captured.facts:
        raise _refused(
            f"{name} reads {fact.name} of {_fact_slot(captured, slots, fact)}, which isn't the "
            "same for every tensor that it may be given",
            "decide on that outside.",
        )
    if captured.regions:
        raise _refused(
            f"{name} was given tensors that share memory, and where they share it matters",
            "pass clones.",
        )


def refuse_places(captured: Capture, name: str) -> None:
    """Refuse a function for which it matters where a tensor lies in its storage.

    Raises:
        UnsupportedError: If it does.
    """
    if captured.events.placed:
        raise _refused(
            f"{name} names a place in memory (storage_offset, or as_strided with an offset or "
            "beyond a tensor)",
            "use indices, or as_strided of a new tensor without an offset.",
        )


def _fact_slot(captured: Capture, slots: Sequence[str], fact: Fact) -> str:
    if fact.is_argument:
        return _argument(captured, slots, fact.position)
    return slots[len(captured.inputs) - len(captured.lifted) + fact.position]


def _argument(captured: Capture, slots: Sequence[str], leaf: int) -> str:
    inputs = enumerate(captured.inputs)
    return next((slots[i] for i, slot in inputs if slot.argument == leaf), "an argument")


def _slot(slots: Sequence[str], index: int) -> str:
    return slots[index] if index < len(slots) else "memory that inputs share"


def refuse_nodes(module: fx.GraphModule, name: str) -> None:
    """Refuse a graph with nodes that need Python, or what values were when it was captured.

    Raises:
        UnsupportedError: It names the Function or the op.
    """
    for node in module.graph.nodes:
        if graphs.is_premise(node):
            raise _refused(
                f"{name} reads values of tensors ({_reason(node)})",
                "compute with the tensors themselves (torch.where).",
            )
        if graphs.is_opaque(node):
            target: Any = node.target
            raise _refused(
                f"{name} calls {target.__name__}, whose code runs on real values in Python "
                f"({_reason(node)})",
                "write its forward, and the rules that are used, with torch's ops, or leave it "
                "out of what is exported.",
            )


def refuse_ops(module: fx.GraphModule, name: str) -> None:
    """Refuse ops that have no code outside of Python, and results that compiled code can't make.

    Raises:
        UnsupportedError: It names the op.
    """
    output: Any = next(iter(reversed(module.graph.nodes)))
    results = set(output.all_input_nodes)
    for node in module.graph.nodes:
        value, op = graphs.value_of(node), graphs.op_of(node)
        if isinstance(value, torch.Tensor):
            # Inside of a graph nobody sees whether a conjugate is computed at once.
            refuse_tensor(value, f"a result of {node.target}", name, inside=node not in results)
        if node.op != "call_function" or not isinstance(op, OpOverload):
            continue
        if op.namespace not in _COMPILED:
            raise _refused(
                f"{name} calls the operator {op}, which isn't one of torch's own",
                "write it with torch's ops, or leave it out of what is exported.",
            )
        if graphs.is_random(node) and not _drops_nothing(node, op):
            raise _refused(
                f"{name} draws random numbers ({op})",
                "draw them outside and pass them as arguments; call eval() on a module with "
                "dropout.",
            )


def _drops_nothing(node: fx.Node, op: OpOverload) -> bool:
    """Whether an op that draws for dropout only, as fused attention, is given no dropout."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else None
            return bool(node.kwargs.get(argument.name, given or argument.default_value) == 0.0)
    return False


def refuse_tensor(tensor: torch.Tensor, where: str, name: str, *, inside: bool = False) -> None:
    """Refuse a kind of tensor that an artifact can't be given.

    Raises:
        UnsupportedError: It says which.
    """
    if tensor.layout is not torch.strided:
        raise _refused(
            f"{name} has a tensor that isn't a plain strided one: {where}", "pass a dense tensor."
        )
    if not inside and (tensor.is_conj() or tensor.is_neg()):
        raise _refused(
            f"{name} has a conjugate, or a negative, that is computed when it is read: {where}",
            "call resolve_conj() or resolve_neg() of it.",
        )
    if tensor.device.type != "cpu":
        raise _refused(
            f"{name} has a tensor on {tensor.device}: {where}",
            "export with tensors on the CPU; artifacts for other devices aren't supported yet.",
        )


def refuse_class(tensor: torch.Tensor, where: str, name: str) -> None:
    """Refuse a tensor whose class has a say in what is computed with it.

    Raises:
        UnsupportedError: It names the class.
    """
    found = artifacts.class_in_the_way(tensor)
    if found is not None:
        raise _refused(
            f"{name} has {found}: {where}", "pass a plain tensor (x.as_subclass(torch.Tensor))."
        )


def refuse_nothing(module: fx.GraphModule, name: str) -> None:
    """Refuse a graph that computes nothing.

    Raises:
        UnsupportedError: If it doesn't.
    """
    if not any(node.op == "call_function" for node in module.graph.nodes):
        raise UnsupportedError(
            f"{name} computes nothing: all that it returns is what it was given.",
            remedy="export a function that computes something.",
        )


def _reason(node: fx.Node) -> str:
    target: Any = node.target
    found = getattr(target, "opaque", None)
    return "a value decides" if found is None else found.reason


def _refused(what: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"{what}, which an artifact can't do.", remedy=remedy)
