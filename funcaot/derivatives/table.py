"""The table of derivatives of ops that torch has none for; rules and users add to it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from funcaot._torch.autograd.op_kernels import OpOverload, op_name
from funcaot.errors import FuncaotError

__all__ = [
    "Derivative",
    "derivatives",
    "load_rules",
    "on_change",
    "register",
    "register_derivative",
]


@dataclass(frozen=True)
class Derivative:
    """How an op is differentiated where torch can't.

    Attributes:
        op: The op.
        formula: The same function in ops that have derivatives.
        vjp: ``vjp(cotangents, *args, **kwargs)`` gives a gradient per positional argument, and
            after these a dictionary of gradients of keywords, if there are any.
        jvp: ``jvp(tangents, *args, **kwargs)`` gives a tangent per output.
        reverse: Whether reverse mode is this rule's rather than torch's.
        lacking: Names of arguments by which torch has no gradient, though it has one by others:
            where one of these needs it, reverse mode is this rule's.
        selective: Whether ``vjp`` takes a keyword ``wanted``, one boolean per argument of the
            schema.
        reads_results: Whether ``vjp`` takes a keyword ``results``, what the op returned, which is
            kept for it then.
        constant: Names of arguments that are functions of the others, like a forward's result,
            and that the rule doesn't ask for: autograd doesn't see them.
        later: Whether torch's own formula is right for the op's derivative, and wrong for those
            after it: it serves where nothing is differentiated once more.
        batched: How ``vmap`` calls it: ``batched(size, in_dims, *args, **kwargs)`` gives outputs
            and their dimensions, or NotImplemented for what torch's own rule gives; of a list of
            tensors there is a list of dimensions. None leaves it to torch. A rule with nothing
            else is for an op that is composed of others.
    """

    op: OpOverload
    formula: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None
    reverse: bool = True
    lacking: frozenset[str] = frozenset()
    selective: bool = False
    reads_results: bool = False
    constant: frozenset[str] = frozenset()
    later: bool = False
    batched: Callable[..., Any] | None = None


_RULES = (
    "attention.fused",
    "attention.packed",
    "distances.cdist",
    "distances.pdist",
    "elementwise.dropout",
    "elementwise.glu",
    "elementwise.hardsigmoid",
    "elementwise.igamma",
    "elementwise.steps",
    "elementwise.zeta",
    "losses.ctc",
    "losses.huber",
    "losses.linear_cross_entropy",
    "losses.multi_margin",
    "losses.multilabel_margin",
    "losses.soft_margin",
    "matrices.cholesky",
    "matrices.det",
    "matrices.eigen",
    "matrices.geqrf",
    "matrices.ldl",
    "matrices.ormqr",
    "matrices.solved",
    "normalization.batch_norm",
    "normalization.layer_norm",
    "normalization.weight_norm",
    "pieces.broadcast",
    "pieces.chunks",
    "pieces.cumulated_products",
    "pieces.embedding_bag",
    "pieces.extremes",
    "pieces.histogram",
    "pieces.index_reduce",
    "pieces.masked_select",
    "pieces.packed",
    "pieces.products",
    "pieces.real_spectra",
    "pieces.scatter_reduce",
    "pieces.segment_reduce",
    "pieces.unique",
    "sampling.grid_sampler",
)
_table: dict[OpOverload, Derivative] = {}
_listeners: list[Callable[[], None]] = []


def register(rule: Derivative) -> Derivative:
    """Put a rule into the table, in the place of an earlier one of the same op."""
    _table[rule.op] = rule
    for listener in _listeners:
        listener()
    return rule


@functools.cache
def load_rules() -> None:
    """Put this package's rules into the table; not when funcaot is imported, as it takes time.

    Not while something is captured either: ``aot.runtime`` asks for it before.
    """
    for name in _RULES:
        importlib.import_module(f"funcaot.derivatives.{name}")


def derivatives() -> Iterator[Derivative]:
    """The rules of the table."""
    load_rules()
    yield from tuple(_table.values())


def on_change(listener: Callable[[], None]) -> None:
    """Call a function whenever the table has changed."""
    _listeners.append(listener)


def register_derivative(
    op: OpOverload,
    *,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    formula: Callable[..., Any] | None = None,
) -> None:
    """Give an op of torch a derivative that it lacks.

    It is used wherever a compiled function is differentiated, and in eager code inside of
    :func:`funcaot.install`. The op itself still runs as it did; a rule runs when a derivative is
    asked for. Rules are written in torch ops, and are differentiated in their turn for the orders
    after them.

    Args:
        op: An overload, like ``torch.ops.aten.special_airy_ai.default``.
        jvp: ``jvp(tangents, *args, **kwargs)`` returns the tangent of the output, or a tuple of
            one per output. ``tangents`` has one entry per positional argument, None for zero, a
            list of them for a list of tensors; tangents of keywords come as a dictionary at the
            end, if there are any.
        vjp: ``vjp(cotangents, *args, **kwargs)`` returns a gradient per positional argument, None
            for zero, and a dictionary of those of keywords at the end, if there are any.
            ``cotangents`` has one entry per output, None for zero.
        formula: The same function as the op in ops that have derivatives. It serves for whichever
            of the two isn't given. With ``jvp`` alone, reverse mode is left as torch has it.

    Raises:
        FuncaotError: If ``op`` isn't an overload, or no rule is given.

    Example:
        >>> import torch, funcaot
        >>> @torch.library.custom_op("docs::cube", mutates_args=())
        ... def cube(x: torch.Tensor) -> torch.Tensor:
        ...     return x ** 3
        >>> op = torch.ops.docs.cube.default
        >>> funcaot.register_derivative(op, formula=lambda x: x * x * x)
        >>> with funcaot.install():
        ...     torch.func.grad(torch.func.grad(cube))(torch.tensor(2.0))
        tensor(12.)
    """
    if not isinstance(op, OpOverload):
        raise FuncaotError(
            "register_derivative was not given an op.",
            expected="an overload, like torch.ops.aten.special_airy_ai.default",
            got=repr(op),
            remedy="name the overload: torch.ops.aten.<name>.default.",
        )
    given = [rule for rule in (jvp, vjp, formula) if rule is not None]
    if not given or not all(map(callable, given)):
        raise FuncaotError(
            f"register_derivative was given no rule for {op_name(op)}.",
            expected="at least one function among jvp, vjp and formula",
            got=repr((jvp, vjp, formula)),
            remedy="pass formula: the op's function in ops that have derivatives.",
        )
    load_rules()  # of which this one may take the place of one
    register(Derivative(op, formula, vjp, jvp, reverse=vjp is not None or formula is not None))
