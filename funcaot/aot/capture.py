"""Capture: run a function once on the tape."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch import tracing
from funcaot._torch.pytree import TreeSpec, tree_flatten, tree_unflatten
from funcaot._torch.seeding import seeding_refused
from funcaot.aot import graphs
from funcaot.aot.lifting import Lifting
from funcaot.aot.signature import Constant, Signature
from funcaot.aot.spec import TensorSpec, spec_of
from funcaot.aot.tape import Tape
from funcaot.errors import FuncaotError, UnsupportedError


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
        with _explained(name), lifting:
            result = function(*args, **kwargs)
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


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Refuse what a capture can't record; the user's own exceptions pass through unchanged."""

    def refuse(seeding: str) -> UnsupportedError:
        return UnsupportedError(
            f"{name} calls torch.{seeding}, which would happen once, when it is captured, and not "
            "at every call.",
            remedy="seed outside of the compiled function.",
        )

    try:
        with seeding_refused(refuse):
            yield
    except FuncaotError:
        raise
    except Exception as error:
        if not tracing.is_untraceable(error):
            raise
        reason = str(getattr(error, "func", None) or error).splitlines()[0]
        raise UnsupportedError(
            f"{name} depends on the values or the memory of a tensor, which a capture doesn't "
            f"have: {reason}{_line_of(error)}.",
            remedy="keep that part out of the compiled function, or put it into the forward of a "
            "funcaot.Function, which then runs on real values.",
        ) from error


def _line_of(error: Exception) -> str:
    """Where the user's code asked for it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in frame.filename and "/funcaot/" not in frame.filename
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""


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
