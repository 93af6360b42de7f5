"""Tensors inside of wrappers that autograd knows by themselves, as a capture sees them.

A wrapper is one tensor for autograd, and what its class does to the tensors inside it doesn't
record. A function that takes such a tensor out of its wrapper sees whether it requires grad; if a
result's gradient leads to it, it becomes an operand of its own, for its gradient alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from funcaot._torch.autograd.nodes import leaves_behind
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.subclasses.nodes import way_to
from funcaot.aot.tape.tape import Tape
from funcaot.errors import UnsupportedError

__all__ = ["reached", "refusal", "refuse_changed", "refuse_derivatives", "ways"]


def _parts(wrapper: torch.Tensor, spec: TensorSpec) -> Iterator[tuple[torch.Tensor, TensorSpec]]:
    if spec.structure is not None:
        yield from zip(spec.structure.parts(wrapper), spec.structure.inner, strict=True)


def refuse_changed(tape: Tape, slots: Sequence[Any], name: str) -> None:
    """Refuse that a tensor inside of a wrapper has got another history.

    Args:
        tape: The tape.
        slots: The capture's inputs.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: If one has.
    """
    given = {id(slot.tensor) for slot in slots}
    for slot in slots:
        pending = [(slot.tensor, slot.spec)]
        while pending:
            for part, inner in _parts(*pending.pop()):
                if id(part) in given:
                    continue
                pending.append((part, inner))
                changed = part.requires_grad != inner.requires_grad
                changed = changed or tape.wrappers.has_new_history(part)
                if changed or (part.grad_fn is None) != (inner.is_leaf or not part.requires_grad):
                    raise refusal(name, "changes what autograd knows of")


def reached(tape: Tape, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Inputs for the tensors inside of wrappers that gradients go to, which come after all others.

    Args:
        tape: The tape.
        inputs: The capture's inputs.
        outputs: What the function returned.
    """
    if not tape.wrappers.inner_leaves:
        return []
    seen = [*outputs, *(slot.tensor for slot in inputs)]
    roots = [value for value in seen if isinstance(value, torch.Tensor) and value.requires_grad]
    found = set(map(id, leaves_behind(roots)))
    owners = {slot.node: slot for slot in inputs}
    made = []
    for part, leaf in tape.wrappers.inner_leaves.values():
        node = tape.wrappers.entered(part)
        if id(leaf) in found and node is not None:
            owner, path = way_to(node)
            spec = owners[owner].spec
            for name in path:
                spec = spec.structure.inner[spec.structure.names.index(name)]
            changes = {"spec": spec, "leaf": leaf, "tensor": part, "node": node}
            made.append(replace(owners[owner], **changes, argument=None, kind="inner"))
    return made


def ways(slots: Sequence[Any]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """For each of these inputs the input that it is inside of, and the attributes on the way."""
    positions = {slot.node: index for index, slot in reversed(list(enumerate(slots)))}
    found = [way_to(slot.node) for slot in slots if slot.kind == "inner"]
    return tuple((positions[owner], path) for owner, path in found)


def refuse_derivatives(
    tape: Tape, slots: Sequence[Any], results: Sequence[torch.Tensor], name: str
) -> None:
    """Refuse a gradient of a tensor inside of a wrapper that isn't an operand.

    Raises:
        UnsupportedError: If there is one, or if such a tensor has got a gradient.
    """
    leaves = {id(leaf): leaf for _, leaf in tape.wrappers.inner_leaves.values()}
    if any(leaf.grad is not None for leaf in leaves.values()):
        raise refusal(name, "calls backward() for the gradient of")
    missing = leaves.keys() - {id(slot.leaf) for slot in slots}
    if missing and not missing.isdisjoint(map(id, leaves_behind(results))):
        raise refusal(name, "computes, with gradients, with")


def refusal(name: str, what: str) -> UnsupportedError:
    """What is raised.

    Args:
        name: The user's function, for messages.
        what: What it does with a tensor inside of a wrapper.
    """
    return UnsupportedError(
        f"{name} {what} a tensor that it takes out of a tensor subclass, which isn't replayed.",
        remedy="pass the tensor as an argument and make the wrapper inside, or use x.detach().",
    )
