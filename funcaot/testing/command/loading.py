"""Import what a command line names, and evaluate the arguments that it gives."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from funcaot.errors import FuncaotError

NAMESPACE = {"torch": torch, "float64": torch.float64, "float32": torch.float32}


def load(name: str) -> Any:
    """Imports ``package.module:Name`` or ``path/file.py:Name``.

    Raises:
        FuncaotError: There is no such module or name.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise FuncaotError(
            f"funcaot check can't find {name!r}.",
            expected="package.module:Name or file.py:Name",
            got=repr(name),
            remedy="put a colon between the module and the Function.",
        )
    module = load_place(place)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            public = ", ".join(sorted(word for word in vars(module) if not word.startswith("_")))
            raise FuncaotError(
                f"funcaot check found {place}, but no {attribute!r} in it.",
                expected=f"one of {public}",
                got=repr(attribute),
                remedy="correct the name after the colon.",
            )
        value = getattr(value, part)
    return value


def load_place(place: str) -> ModuleType:
    """Imports a module by its name or its file."""
    return load_file(Path(place)) if place.endswith(".py") else load_module(place)


def load_module(name: str) -> ModuleType:
    """Imports a module, also from the working directory."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise FuncaotError(
            f"funcaot check can't import {name!r}: {error}.",
            remedy="run it where the package is installed, or name the file: path/file.py:Name.",
        ) from error


def load_file(path: Path) -> ModuleType:
    """Imports a file as a module of its own name."""
    if not path.is_file():
        raise FuncaotError(f"funcaot check can't find the file {path}.", remedy="check the path.")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules.setdefault(path.stem, module)
    specification.loader.exec_module(module)
    return module


def evaluate(expression: str, target: Any) -> tuple[Any, ...]:
    """The arguments that an expression stands for; names of the target's module are known.

    Raises:
        FuncaotError: It is not a valid expression.
    """
    module = sys.modules.get(getattr(target, "__module__", ""), None)
    known = {**(vars(module) if module else {}), **NAMESPACE}
    default = torch.get_default_dtype()
    # Finite differences need double precision, and people write torch.rand(3).
    torch.set_default_dtype(torch.float64)
    try:
        value = eval(expression, known)
    except Exception as error:
        raise FuncaotError(
            f"funcaot check can't evaluate --inputs {expression!r}: {error}.",
            expected="Python with torch, for example: torch.rand(3, 4), 2",
            remedy="quote the expression, and separate the arguments by commas.",
        ) from error
    finally:
        torch.set_default_dtype(default)
    return value if isinstance(value, tuple) else (value,)
