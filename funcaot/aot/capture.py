"""Capture: run a function once on the tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch import tracing
from funcaot._torch.pytree import TreeSpec, tree_flatten, tree_unflatten
from funcaot.aot import graphs
from funcaot.aot.lifting import Lifting
from funcaot.aot.signature import Constant, Signature
from funcaot.aot.spec import TensorSpec, spec_of
from funcaot.aot.tape import Tape
from funcaot.errors import UnsupportedError


@dataclass(frozen=True, eq=False)
class Input:
    """One tensor that a captured function depends on.

    Attributes:
        spec: Its metadata.
        leaf: The tape's leaf, which gradients are taken with respect to.
        tensor: What the function saw: the leaf, or a non-leaf of the same value.
        node: The placeholder.
        argument: Position among the call's flat leaves, or None for a lifted tensor.
    """

    spec: TensorSpec
    leaf: torch.Tensor
    tensor: torch.Tensor
    node: fx.Node
    argument: int | None


@dataclass(frozen=True, eq=False)
class Capture:
    """A function's run on a tape.

    Attributes:
        tape: The tape.
        inputs: Arguments first, then lifted tensors.
        lifted: The real tensors that were lifted, in order.
        outputs: Flat outputs: tape tensors and other values.
        tree: Structure of the outputs.
        effect_nodes: Nodes that run even if nobody uses their results: random ops, checks.
    """

    tape: Tape
    inputs: tuple[Input, ...]
    lifted: tuple[torch.Tensor, ...]
    outputs: tuple[Any, ...]
    tree: TreeSpec
    effect_nodes: tuple[fx.Node, ...]


def capture(
    function: Callable[..., Any], signature: Signature, leaves: Sequence[Any], name: str
) -> Capture:
    """Run a function on fake, functional, proxied tensors with autograd recording.

    Nothing of the backward is traced.

    Args:
        function: The user's function.
        signature: The call's signature.
        leaves: Flat leaves of ``(args, kwargs)``.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: For what can't be captured (data-dependent values, and so on).
        Exception: Whatever the function raises, unchanged.
    """
    tape = Tape()
    inputs: list[Input] = []
    known: dict[int, torch.Tensor] = {}

    def add(tensor: torch.Tensor, argument: int | None = None) -> torch.Tensor:
        spec = spec_of(tensor, forward_mode=signature.ambient.forward_mode)
        entered = _enter(tape, len(inputs), tensor, spec, argument)
        inputs.append(entered)
        return entered.tensor

    traced: list[Any] = []
    for position, (leaf, described) in enumerate(zip(leaves, signature.leaves, strict=True)):
        if isinstance(described, Constant):
            traced.append(leaf)
            continue
        if id(leaf) not in known:
            known[id(leaf)] = add(leaf, position)
        traced.append(known[id(leaf)])
    args, kwargs = tree_unflatten(traced, signature.tree)
    lifting = Lifting(known, add, name)
    with tape.recording(grad_mode=signature.ambient.grad_mode):
        try:
            with lifting:
                result = function(*args, **kwargs)
        except tracing.DATA_DEPENDENT_ERRORS as error:
            raise UnsupportedError(
                f"{name} depends on the values of a tensor, which a capture doesn't have: "
                f"{getattr(error, 'func', error)}.",
                remedy="move the data-dependent part out of the compiled function, or into a "
                "Function's forward.",
            ) from error
        flat, tree = tree_flatten(result)
        outputs = tuple(lifting.replace(value) for value in flat)
    return Capture(
        tape,
        tuple(inputs),
        tuple(lifting.lifted),
        outputs,
        tree,
        tuple(node for node in tape.graph.nodes if graphs.has_effect(node)),
    )


def _enter(
    tape: Tape, index: int, tensor: torch.Tensor, spec: TensorSpec, argument: int | None
) -> Input:
    name = f"primal_{index}" if argument is not None else f"lifted_{index}"
    leaf = tape.placeholder(name, spec, tensor)
    node = tape.node_of(leaf)
    if node is None:
        raise RuntimeError("a placeholder isn't on its tape")
    seen = leaf if spec.is_leaf or not spec.requires_grad else tape.non_leaf(leaf)
    return Input(spec, leaf, seen, node, argument)
