"""Run a case with a compiler and say who is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import funcaot
from funcaot.errors import FuncaotError
from tests.silent_errors.records import STEPS, Case, Compiler

RIGHT = "right"
WRONG = "wrong"
RAISES = "raises"
REFUSES = "refuses"


@dataclass(frozen=True)
class Raised:
    """A step that ended in an error."""

    error: Exception


@dataclass(frozen=True)
class Seen:
    """What a step returned: every leaf of it, and which of its tensors share memory."""

    structure: str
    leaves: list[Any]
    same_objects: list[int]
    same_memory: list[int]


@dataclass(frozen=True)
class Verdict:
    """Whether a compiler is right about a case.

    Attributes:
        status: ``right``, ``wrong`` (silently), ``raises`` (where eager does not) or ``refuses``
            (a ``FuncaotError`` that the case allows).
        detail: The first difference, or the error.
    """

    status: str
    detail: str = ""


def see(result: Any) -> Seen:
    """Everything that is compared of a result, taken before a later step can change it."""
    leaves, structure = pytree.tree_flatten(result)
    tensors = [value for value in leaves if isinstance(value, Tensor)]
    objects = [id(tensor) for tensor in tensors]
    memory = [
        tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
        for tensor in tensors
    ]
    return Seen(
        str(structure),
        [picture(value) if isinstance(value, Tensor) else value for value in leaves],
        [objects.index(item) for item in objects],
        [memory.index(item) for item in memory],
    )


def picture(tensor: Tensor) -> dict[str, Any]:
    """A tensor's metadata and values. The stride of a dimension of size 1 says nothing."""
    strides = tensor.stride() if tensor.numel() else ()
    return {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "strides": [s for s, n in zip(strides, tensor.shape, strict=False) if n > 1],
        "requires_grad": tensor.requires_grad,
        "values": tensor.detach().clone(),
    }


def run(case: Case, compiler: Compiler) -> list[Seen | Raised]:
    """The three steps of a case."""
    torch.manual_seed(0)
    call = case.build(compiler)
    return [attempt(call, step) for step in STEPS]


def attempt(call: Callable[[int], Any], step: int) -> Seen | Raised:
    """One step; an error is an outcome like another."""
    try:
        return see(call(step))
    except Exception as error:  # noqa: BLE001 - compared with eager's
        return Raised(error)


def expected(case: Case) -> list[Seen | Raised]:
    """What is right: eager, unless the case says that eager is not."""
    if case.oracle is None:
        return run(case, lambda function: function)
    return [attempt(case.oracle, step) for step in STEPS]


def difference(found: Seen, wanted: Seen) -> str | None:
    """What differs between two results, in words; None where nothing does."""
    if found.structure != wanted.structure:
        return f"returned {found.structure}, expected {wanted.structure}"
    for index, (mine, oracle) in enumerate(zip(found.leaves, wanted.leaves, strict=True)):
        told = leaf_difference(mine, oracle)
        if told is not None:
            return f"value {index}: {told}"
    if found.same_objects != wanted.same_objects:
        return f"same objects {found.same_objects}, expected {wanted.same_objects}"
    if found.same_memory != wanted.same_memory:
        return f"shared memory {found.same_memory}, expected {wanted.same_memory}"
    return None


def leaf_difference(mine: Any, oracle: Any) -> str | None:
    """What differs between two values."""
    if not isinstance(oracle, dict) or not isinstance(mine, dict):
        same = type(mine) is type(oracle) and mine == oracle
        return None if same else f"got {mine!r}, expected {oracle!r}"
    for key in ("dtype", "shape", "strides", "requires_grad"):
        if mine[key] != oracle[key]:
            return f"{key} {mine[key]}, expected {oracle[key]}"
    try:
        torch.testing.assert_close(mine["values"], oracle["values"], equal_nan=True)
    except AssertionError as error:
        return str(error).splitlines()[0] + f" got {mine['values'].flatten()[:4].tolist()}"
    return None


def judge(case: Case, compiler: Compiler, wanted: list[Seen | Raised] | None = None) -> Verdict:
    """Whether a compiler is right about all steps of a case."""
    wanted = expected(case) if wanted is None else wanted
    loud = None
    for step, (mine, oracle) in enumerate(zip(run(case, compiler), wanted, strict=True)):
        if isinstance(mine, Raised):
            if isinstance(oracle, Raised) and isinstance(mine.error, type(oracle.error)):
                continue
            loud = loud or refused(case, mine.error, step)
        elif isinstance(oracle, Raised):
            return Verdict(WRONG, f"call {step}: no error, expected {oracle.error!r}")
        elif (told := difference(mine, oracle)) is not None:
            return Verdict(WRONG, f"call {step}: {told}")
    return loud or Verdict(RIGHT)


def refused(case: Case, error: Exception, step: int) -> Verdict:
    """A loud difference: an error that eager does not raise."""
    allowed = case.refuses is not None and isinstance(error, FuncaotError)
    words = str(error).strip().splitlines()
    detail = f"call {step}: {type(error).__name__}: {words[0] if words else ''}"
    return Verdict(REFUSES if allowed else RAISES, detail)


def eager(function: Any) -> Any:
    """Eager, as a compiler."""
    return function


def with_torch(backend: str) -> Compiler:
    """``torch.compile`` with a backend."""
    return lambda function: torch.compile(function, backend=backend)


def with_funcaot(backend: str) -> Compiler:
    """``funcaot.compile`` with a backend."""
    return lambda function: funcaot.compile(function, backend=backend)


COMPILERS: dict[str, Compiler] = {
    "eager": eager,
    "torch.compile, aot_eager": with_torch("aot_eager"),
    "torch.compile, Inductor": with_torch("inductor"),
    "funcaot, eager": with_funcaot("eager"),
    "funcaot, Inductor": with_funcaot("inductor"),
}
