"""Find what can be checked in a module, or in all modules of a package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.errors import FuncaotError
from funcaot.functions.custom_rule import CustomRule


@dataclass(frozen=True)
class Target:
    """One thing to check.

    Attributes:
        name: ``package.module:Name``.
        value: A Function class, or a callable.
    """

    name: str
    value: Any


@dataclass(frozen=True)
class Skipped:
    """What isn't checked.

    Attributes:
        name: ``package.module:Name``, or a module.
        reason: Why not.
    """

    name: str
    reason: str


def functions_of(module: ModuleType) -> Iterator[Target]:
    """The Functions that a module defines, ``custom_vjp`` and compiled functions among them."""
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) == module.__name__ and is_function(value):
            yield Target(f"{module.__name__}:{name}", value)


def is_function(value: Any) -> bool:
    """Whether this is something that ``check`` is for."""
    if isinstance(value, CustomRule | CompiledFunction):
        return True
    if not (isinstance(value, type) and issubclass(value, torch.autograd.Function)):
        return False
    return value.forward is not torch.autograd.Function.forward


def modules_of(package: ModuleType) -> Iterator[ModuleType | Skipped]:
    """A module and, of a package, every module below it; what can't be imported is skipped."""
    yield package
    for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
        if found.name.rpartition(".")[2] == "__main__":
            continue  # to import it would run it
        try:
            yield importlib.import_module(found.name)
        except Exception as error:  # noqa: BLE001  (a module that needs something else)
            text = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {text[0] if text else ''}"
            yield Skipped(found.name, f"can't be imported: {reason}")


def targets_in(module: ModuleType, *, below: bool) -> Iterator[Target | Skipped]:
    """Everything to check in a module.

    Args:
        module: A module or package.
        below: Whether the modules below a package count too.

    Raises:
        FuncaotError: There is nothing to check.
    """
    found = False
    for inner in modules_of(module) if below else [module]:
        if isinstance(inner, Skipped):
            yield inner
            continue
        for target in functions_of(inner):
            found = True
            yield target
    if not found:
        raise FuncaotError(
            f"funcaot check found no Function in {module.__name__}.",
            expected="classes that derive from torch.autograd.Function, custom_vjp or compiled "
            "functions, defined in it",
            remedy="name one by package.module:Name, or add --all for the modules below."
            if not below
            else "name one by package.module:Name.",
        )
