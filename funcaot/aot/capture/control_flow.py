"""``torch.cond``, ``while_loop``, ``map`` and scans in a capture; ``grad_effects`` asks here.

Each is what its own documentation says that it is: an ``if``, a ``while``, a ``for``. So it runs as
one. A condition is a value that is read, as ``bool(x)`` is: what it was is a premise of the
program, and each way through is a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_flatten, tree_map, tree_unflatten
from funcaot._torch.tracing import control_flow as operators
from funcaot._torch.tracing import tracing

__all__ = ["run"]


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator as the Python that it stands for.

    Raises:
        RuntimeError: Its callables return what it doesn't take, as in eager.
    """
    # A torch newer than 2.13 also says which arguments are written to.
    given = {name: value for name, value in kwargs.items() if name != "mutated_arg_indices"}
    return _AS_PYTHON[func](*args, **given)


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], args: Any) -> Any:
    if not (isinstance(pred, torch.Tensor) and tracing.is_batched(pred)):
        return true_fn(*args) if pred else false_fn(*args)
    # A condition for each example: both are computed, and one is chosen.
    chosen = pred.reshape(())
    return tree_map(lambda a, b: torch.where(chosen, a, b), true_fn(*args), false_fn(*args))


def _holds(condition: Any) -> bool:
    """The truth of what ``cond_fn`` returned."""
    scalar = isinstance(condition, torch.Tensor) and condition.dim() == 0
    if isinstance(condition, bool | torch.SymBool) or (scalar and condition.dtype == torch.bool):
        return bool(condition)
    raise RuntimeError(
        f"cond_fn has to return a boolean, or a boolean tensor without dimensions; "
        f"it returned {condition!r}."
    )


def _while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any, additional: Any = ()
) -> tuple[Any, ...]:
    first = leaves = tuple(carried)
    following: Any = None
    while _holds(cond_fn(*leaves, *additional)):
        following = body_fn(*leaves, *additional)
        # Containers inside come in leaves, as torch's own wrapper of the operator gives them.
        leaves = tuple(tree_flatten(following)[0])
        if not isinstance(following, tuple) or len(leaves) != len(first):
            raise RuntimeError(
                f"body_fn has to return a tuple of {len(first)}, what the loop carries; "
                f"it returned {following!r}."
            )
    if leaves is first:  # no input is a result
        copied = [x.clone() if isinstance(x, torch.Tensor) else x for x in first]
        return operators.as_carried(body_fn, copied)
    return following


def _stacked(rows: Sequence[Any]) -> Any:
    """Containers of one structure as one container of stacked tensors."""
    flat = [tree_flatten(row) for row in rows]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    joined = [column[0] if column[0] is None else torch.stack(column) for column in columns]
    return tree_unflatten(joined, flat[0][1])


def _map(function: Callable[..., Any], xs: Any, others: Any) -> Any:
    count = tree_flatten(xs)[0][0].shape[0]
    rows = (tree_map(lambda x, i=i: x.select(0, i), tuple(xs)) for i in range(count))
    return _stacked([function(*row, *others) for row in rows])


def _scan(combine_fn: Callable[..., Any], init: Any, xs: Any, additional: Any = ()) -> Any:
    carry, rows = list(init), []
    spec: Any = None
    for i in range(xs[0].shape[0] if xs else 0):
        found = combine_fn(*carry, *(x.select(0, i) for x in xs), *additional)
        # In leaves, or what it carries and the row, each in the containers of the user.
        leaves, spec = tree_flatten(found)
        carry, row = leaves[: len(carry)], leaves[len(carry) :]
        rows.append(row)
    return tree_unflatten([*carry, *_stacked(rows)], spec) if rows else tuple(carry)


def _associative_scan(combine_fn: Callable[..., Any], xs: Any, additional: Any = ()) -> Any:
    return operators.generic_associative_scan(combine_fn, xs, additional_inputs=additional)


_AS_PYTHON: dict[Any, Callable[..., Any]] = {
    operators.COND: _cond,
    operators.WHILE_LOOP: _while_loop,
    operators.MAP: _map,
    operators.SCAN: _scan,
    operators.ASSOCIATIVE_SCAN: _associative_scan,
}
