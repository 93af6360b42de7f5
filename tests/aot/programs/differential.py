"""Run a function eagerly and compiled on equal inputs and compare everything that can be seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError

# Write to each tensor there is, one at a time.
EVERYTHING = range(1_000_000)


@dataclass
class Inputs:
    """What a function is called with.

    Attributes:
        args: Positional tensors.
        watched: Further tensors to look at: bases of the arguments, closed-over tensors.
        leaves: What gradients are taken with respect to.
    """

    args: list[torch.Tensor]
    watched: list[torch.Tensor]
    leaves: list[torch.Tensor]


@dataclass
class Outcome:
    """One run: its inputs, outputs and what it raised."""

    inputs: Inputs
    outputs: list[Any]
    error: Exception | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Everything to look at, in a fixed order."""
        outputs = [value for value in self.outputs if isinstance(value, torch.Tensor)]
        return [*self.inputs.args, *self.inputs.watched, *outputs]


class Mismatch(AssertionError):
    """The compiled function differs from eager."""


class Stricter(Exception):
    """Autograd's check of versions fails where eager's doesn't.

    The compiled program is one node, and the versions of everything that it saved are checked
    together, also of what only the gradient of another output needs.
    """


class Unseen(Exception):
    """A gradient differs after the caller wrote through ``.data``, which autograd doesn't see.

    Eager takes it at what lies in memory when the backward runs, a compiled function at what it
    kept (docs/limits.md).
    """


def run(
    function: Callable[..., Any], inputs: Inputs, *, grad_mode: bool, store: Any = None
) -> Outcome:
    """Call the function; an exception is part of the outcome.

    Args:
        function: What is called.
        inputs: With what.
        grad_mode: In which grad mode.
        store: An object whose attributes the function sets; they are outputs like the others.
    """
    if store is not None:
        vars(store).clear()
    try:
        with torch.set_grad_enabled(grad_mode):
            result = function(*inputs.args)
    except UnsupportedError:
        raise
    except Exception as error:  # noqa: BLE001 - any of them is compared
        return Outcome(inputs, [], error)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    if store is not None:
        outputs += [value for _, value in sorted(vars(store).items())]
    return Outcome(inputs, outputs)


def version_of(tensor: torch.Tensor) -> int | None:
    """How many in-place changes a tensor counted, if it counts any."""
    return None if tensor.is_inference() else tensor._version


def describe(tensor: torch.Tensor, *, versions: bool) -> dict[str, Any]:
    """A tensor's metadata and its place in autograd's graph."""
    found: dict[str, Any] = {
        "class": (type(tensor), isinstance(tensor, torch.nn.Parameter)),
        "shape": tuple(tensor.shape),
        "stride": tuple(tensor.stride()),
        "offset": tensor.storage_offset(),
        "dtype": tensor.dtype,
        "version": version_of(tensor) if versions else None,
    }
    try:
        found["requires_grad"] = tensor.requires_grad
        found["is_leaf"] = tensor.is_leaf
        found["has grad_fn"] = tensor.grad_fn is not None
    except RuntimeError as error:
        # A view that autograd forbids to look at any more.
        found["autograd"] = str(error)[:60]
    return found


def sharing(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    """For each tensor the first that is the same object, and the first that shares its storage."""
    objects = [id(tensor) for tensor in tensors]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [objects.index(item) for item in objects], [storages.index(item) for item in storages]


def compare(eager: Outcome, compiled: Outcome, what: str, *, output_versions: bool = False) -> None:
    """Compare two outcomes.

    Args:
        eager: The oracle.
        compiled: The run to check.
        what: Shown in messages.
        output_versions: Whether versions of outputs count too. An output's version tells how many
            in-place ops made it, which nobody can build on before the caller has it.
    """
    if (eager.error is None) != (compiled.error is None):
        raise Mismatch(f"{what}: eager {eager.error!r}, compiled {compiled.error!r}")
    if eager.error is not None:
        return
    ours, theirs = compiled.tensors, eager.tensors
    if len(ours) != len(theirs):
        raise Mismatch(f"{what}: {len(ours)} tensors, eager has {len(theirs)}")
    given = len(eager.inputs.args) + len(eager.inputs.watched)
    for index, (mine, oracle) in enumerate(zip(ours, theirs, strict=True)):
        versions = index < given or output_versions
        found, wanted = describe(mine, versions=versions), describe(oracle, versions=versions)
        if "autograd" in wanted:
            # Eager forbids to look at this view; how it forbids that is not compared.
            found = {key: found.get(key) for key in wanted}
            found["autograd"] = wanted["autograd"]
        if found != wanted:
            differing = {
                key: (wanted.get(key), found.get(key))
                for key in wanted | found
                if wanted.get(key) != found.get(key)
            }
            raise Mismatch(f"{what}: tensor {index} of {given} inputs: (eager, ours) {differing}")
        try:
            assert_close(mine.detach(), oracle.detach(), rtol=1e-9, atol=1e-12, equal_nan=True)
        except AssertionError as error:
            raise Mismatch(f"{what}: tensor {index} of {given} inputs: {error}") from None
    if sharing(ours) != sharing(theirs):
        raise Mismatch(f"{what}: sharing: eager {sharing(theirs)}, ours {sharing(ours)}")


def gradients(outcome: Outcome, *, create_graph: bool = False) -> list[torch.Tensor | None] | None:
    """Gradients of a weighted sum of everything that requires grad; None if nothing does."""
    # Looking at a view may raise, as in eager.
    differentiable = [
        tensor for tensor in outcome.tensors if tensor.requires_grad and not tensor.is_leaf
    ]
    leaves = [leaf for leaf in outcome.inputs.leaves if leaf.requires_grad]
    if not differentiable or not leaves:
        return None
    total = sum(
        (tensor * torch.arange(1, tensor.numel() + 1, dtype=tensor.dtype).view(tensor.shape)).sum()
        * (index + 1)
        for index, tensor in enumerate(differentiable)
    )
    return list(
        torch.autograd.grad(
            total, leaves, allow_unused=True, retain_graph=True, create_graph=create_graph
        )
    )


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result or the exception, which must not be one of funcaot's."""
    try:
        return function(*args, **kwargs)
    except UnsupportedError:
        raise
    except Exception as error:  # noqa: BLE001 - any of them is compared
        return error


def compare_gradients(eager: Outcome, compiled: Outcome, what: str) -> None:
    """Compare first derivatives, errors included."""
    wanted, found = attempt(gradients, eager), attempt(gradients, compiled)
    if isinstance(wanted, Exception) and _is_about_looking(wanted):
        return
    if isinstance(wanted, Exception) or isinstance(found, Exception):
        if not isinstance(wanted, Exception) and "modified by an inplace operation" in str(found):
            raise Stricter(str(found))
        if type(wanted) is not type(found):
            raise Mismatch(f"{what}: gradients: eager {wanted!r}, ours {found!r}")
        return
    if (wanted is None) != (found is None):
        raise Mismatch(f"{what}: gradients: eager {wanted}, ours {found}")
    for mine, oracle in zip(found or [], wanted or [], strict=True):
        if (mine is None) != (oracle is None):
            # A gradient that is zero everywhere may be None on one side.
            present = mine if mine is not None else oracle
            if present is None or present.abs().max() > 0:
                raise Mismatch(f"{what}: gradients: eager {wanted}, ours {found}")
        elif mine is not None:
            try:
                assert_close(mine, oracle, rtol=1e-8, atol=1e-10, equal_nan=True)
            except AssertionError as error:
                raise Mismatch(f"{what}: gradient: {error}") from None


def _is_about_looking(error: Exception) -> bool:
    """Whether eager forbids to look at a view whose base was written to since.

    Views made in no_grad mode, and those of ops with several results, are made anew by the
    epilogue after it wrote to their base, so they can be looked at.
    """
    return "its base or another view of its base has been modified inplace" in str(error)


def write_to(outcome: Outcome, target: int) -> Exception | None:
    """What a caller may do afterwards: write to one of the tensors it has."""
    tensor = outcome.tensors[target]
    try:
        # A parameter is written to as optimizers do it.
        parameter = tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        with torch.no_grad() if parameter else contextlib.nullcontext():
            if tensor.dtype.is_floating_point:
                tensor.mul_(1.5)
            else:
                tensor.add_(1)
    except RuntimeError as error:
        return error
    return None


def went_unseen(outcome: Outcome, target: int, versions: Sequence[int | None]) -> bool:
    """Whether a tensor that autograd differentiates changed and its version didn't.

    Args:
        outcome: A run.
        target: The tensor that was written to afterwards.
        versions: What all of them counted before.
    """
    _, storages = sharing(outcome.tensors)
    return any(
        storage == storages[target] and version_of(tensor) == version and tensor.requires_grad
        for tensor, storage, version in zip(outcome.tensors, storages, versions, strict=True)
    )


def check(
    function: Callable[..., Any],
    make_inputs: Callable[[], Inputs],
    *,
    grad_mode: bool = True,
    compiled: Callable[..., Any] | None = None,
    writes: Sequence[int] | None = None,
    derivatives: bool = True,
) -> Callable[..., Any]:
    """Compare a function with its compiled self: two calls, gradients, writes by the caller.

    Args:
        function: Called with the inputs' ``args``.
        make_inputs: Makes equal inputs each time.
        grad_mode: Grad mode of the calls.
        compiled: The compiled function, to share its cache among checks.
        writes: Tensors that the caller writes to afterwards, each in a run of its own; by
            default every output and all that was stored. `EVERYTHING`: arguments too.
        derivatives: Whether gradients are compared.

    Returns:
        The compiled function.

    Raises:
        Mismatch: If anything differs.
        Unseen: If only gradients do, after a write that autograd doesn't see.
        UnsupportedError: If funcaot says that it doesn't support this.
    """
    compiled = compiled or funcaot.compile(function, backend="eager")
    store = getattr(function, "store", None)

    def both() -> tuple[Outcome, Outcome]:
        return (
            run(function, make_inputs(), grad_mode=grad_mode, store=store),
            run(compiled, make_inputs(), grad_mode=grad_mode, store=store),
        )

    eager, ours = both()
    compare(eager, ours, "first call")
    if eager.error is not None:
        return compiled
    if derivatives:
        compare_gradients(eager, ours, "first call")
    again = run(function, eager.inputs, grad_mode=grad_mode, store=store)
    ours_again = run(compiled, ours.inputs, grad_mode=grad_mode, store=store)
    compare(again, ours_again, "second call on the same inputs")
    if derivatives and again.error is None:
        compare_gradients(again, ours_again, "second call on the same inputs")
    given = len(eager.inputs.args) + len(eager.inputs.watched)
    excuses: list[Exception] = []
    for target in range(given, len(eager.tensors)) if writes is None else writes:
        if target >= len(eager.tensors):
            break
        try:
            _compare_after_write(*both(), target, derivatives=derivatives)
        except (Stricter, Unseen) as error:
            excuses.append(error)
    if excuses:
        raise excuses[0]
    return compiled


def _compare_after_write(eager: Outcome, ours: Outcome, target: int, *, derivatives: bool) -> None:
    """Compare two outcomes after the caller wrote to one of the tensors."""
    versions = [version_of(tensor) for tensor in eager.tensors]
    errors = write_to(eager, target), write_to(ours, target)
    what = f"after a write to tensor {target}"
    if "a leaf Variable that requires grad" in str(errors[0]) and errors[1] is None:
        # Of a view that was made before its base required grad, until somebody looks at it.
        return
    if type(errors[0]) is not type(errors[1]):
        raise Mismatch(f"{what}: eager {errors[0]!r}, ours {errors[1]!r}")
    compare(eager, ours, what)
    if derivatives and not went_unseen(eager, target, versions):
        compare_gradients(eager, ours, what)
    elif derivatives:
        try:
            compare_gradients(eager, ours, what)
        except Mismatch as error:
            raise Unseen(str(error)) from error
