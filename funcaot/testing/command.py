"""``python -m funcaot check package.module:MyFunction``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch

from funcaot.errors import FuncaotError
from funcaot.testing.check import CheckResult, check
from funcaot.testing.check.rendering import as_html, as_json, as_rich, as_text
from funcaot.testing.samples import SEED

EPILOG = """\
examples:
  python -m funcaot check mypackage.layers:Softmax
  python -m funcaot check layers.py:Scale --inputs "torch.rand(3, 4), 2" --inputs "torch.rand(2), 1"
  python -m funcaot check layers.py:Round --ref layers.py:round_reference --json
exit status: 0 passed, 1 something is wrong, 2 the check could not run
"""
NAMESPACE = {"torch": torch, "float64": torch.float64, "float32": torch.float32}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m funcaot")
    commands = top.add_subparsers(dest="command", required=True)
    check_command = commands.add_parser(
        "check",
        help="try a Function under every transform",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check_command.add_argument
    add("target", help="package.module:Name or file.py:Name, a Function class or a callable")
    add(
        "--inputs",
        action="append",
        help="the arguments of one call, a Python expression with torch; may be repeated",
    )
    add("--ref", help="a plain-torch function with the intended values and derivatives")
    add("--transforms", help="comma-separated names, for example grad,vmap_of_grad")
    add("--seed", type=int, default=SEED, help="of guessed and random inputs")
    add("--json", action="store_true", help="print a JSON document")
    add("--html", metavar="FILE", help="write a page")
    return top


def main(arguments: Sequence[str] | None = None, output: TextIO | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command line without the program's name.
        output: Where to print; standard output by default.

    Returns:
        The exit status: 0 passed, 1 failed, 2 could not run.
    """
    options = parser().parse_args(arguments)
    stream = output or sys.stdout
    try:
        check_page(options.html)
        target = load(options.target)
        reference = load(options.ref) if options.ref else None
    except FuncaotError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except Exception:  # noqa: BLE001  (the user's module, which can't be imported)
        traceback.print_exc()
        sys.stderr.write("funcaot check can't import what it was pointed at: see above.\n")
        return 2
    try:
        result = run(options, target, reference)
    except FuncaotError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.html:
        Path(options.html).write_text(as_html(result), encoding="utf-8")
    show(result, stream, as_document=options.json)
    return 0 if result.ok else 1


def check_page(file: str | None) -> None:
    """Checks that the page can be written, before minutes are spent.

    Raises:
        FuncaotError: There is no such folder.
    """
    if file and not Path(file).absolute().parent.is_dir():
        raise FuncaotError(
            f"funcaot check can't write {file}.",
            expected="a file in a folder that exists",
            remedy=f"make the folder {Path(file).parent} first.",
        )


def run(options: argparse.Namespace, target: Any, reference: Any) -> CheckResult:
    """Checks the target, with progress on the error stream of a terminal."""
    torch.manual_seed(options.seed)
    inputs = None
    if options.inputs:
        inputs = [evaluate(expression, target) for expression in options.inputs]
    with progress_line(quiet=options.json) as tell:
        result = check(
            target,
            inputs,
            ref=reference,
            transforms=options.transforms.split(",") if options.transforms else None,
            seed=options.seed,
            progress=tell,
        )
    if result.name.startswith("<"):  # a lambda
        result = replace(result, name=options.target.rpartition(":")[2])
    return result


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
    module = load_file(Path(place)) if place.endswith(".py") else load_module(place)
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


def progress_line(*, quiet: bool) -> AbstractContextManager[Any]:
    """Tells on the terminal which row is running, where there is a terminal."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(None)
    return ProgressLine()


class ProgressLine(AbstractContextManager["ProgressLine"]):
    """One line on the error stream, rewritten for each row."""

    def __call__(self, name: str) -> None:
        """Shows the name of the row that runs now."""
        sys.stderr.write(f"\r\x1b[K{name} ...")
        sys.stderr.flush()

    def __exit__(self, *details: object) -> None:
        """Clears the line."""
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def show(result: CheckResult, stream: TextIO, *, as_document: bool) -> None:
    """Prints JSON, a coloured table on a terminal that has rich, or plain text."""
    if as_document:
        stream.write(as_json(result) + "\n")
        return
    if stream.isatty():
        try:
            from rich.console import Console

            Console(file=stream).print(as_rich(result))
            return
        except ImportError:
            pass
    stream.write(as_text(result) + "\n")
