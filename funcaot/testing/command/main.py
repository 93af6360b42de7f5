"""``python -m funcaot check package.module:MyFunction``, for one target or for many."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from funcaot.errors import FuncaotError
from funcaot.testing.check import CheckResult, check
from funcaot.testing.command.loading import evaluate, load, load_place
from funcaot.testing.command.modules import Skipped, Target, targets_in
from funcaot.testing.command.progress import progress_line
from funcaot.testing.command.recording import add_parser, record
from funcaot.testing.command.reports import annotations, as_junit
from funcaot.testing.command.samples_file import Calls, inputs_for, read
from funcaot.testing.command.showing import page, show
from funcaot.testing.samples import SEED

EPILOG = """\
examples:
  python -m funcaot check mypackage.layers:Softmax
  python -m funcaot check layers.py:Scale --inputs "torch.rand(3, 4), 2" --inputs "torch.rand(2), 1"
  python -m funcaot check layers.py:Round --ref layers.py:round_reference --json
  python -m funcaot check mypackage.layers other.py:Gather --junit results.xml
  python -m funcaot check mypackage --all --samples funcaot-samples.pt --github
exit status: 0 passed, 1 something is wrong, 2 the check could not run
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m funcaot")
    commands = top.add_subparsers(dest="command", required=True)
    check_command = commands.add_parser(
        "check",
        help="try Functions under every transform",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check_command.add_argument
    add(
        "targets",
        nargs="+",
        metavar="target",
        help="package.module:Name or file.py:Name, a Function class or a callable; or a module or "
        "file, for all Functions that it defines",
    )
    add("--all", action="store_true", help="of a package, all modules below it too")
    add(
        "--inputs",
        action="append",
        help="the arguments of one call, a Python expression with torch; may be repeated",
    )
    add("--samples", metavar="FILE", type=Path, help="arguments that `funcaot record` has seen")
    add("--explore", action="store_true", help="try variants of the given arguments too")
    add("--ref", help="a plain-torch function with the intended values and derivatives")
    add("--transforms", help="comma-separated names, for example grad,vmap_of_grad,second_order")
    add("--backend", default="eager", help="of the compiled column: eager, inductor or none")
    add("--seed", type=int, default=SEED, help="of guessed and random inputs")
    add("--strict", action="store_true", help="warnings fail too")
    add("--json", action="store_true", help="print a JSON document")
    add("--html", metavar="FILE", help="write a page")
    add("--junit", metavar="FILE", help="write JUnit's XML")
    add("--github", action="store_true", help="print annotations for GitHub's workflows")
    add_parser(commands)
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
        if options.command == "record":
            return record(options, stream)
        return run_check(options, stream)
    except FuncaotError as error:
        sys.stderr.write(f"{error}\n")
        return 2


@dataclass(frozen=True)
class Plan:
    """What a command line asks for.

    Attributes:
        options: The command line.
        targets: What to check.
        skipped: What was found and can't be.
        reference: Of ``--ref``.
        calls: Of ``--samples``.
        single: Whether one thing was named, so that what is wrong with it is an error.
    """

    options: argparse.Namespace
    targets: tuple[Target, ...]
    skipped: tuple[Skipped, ...]
    reference: Any
    calls: Calls
    single: bool


def run_check(options: argparse.Namespace, stream: TextIO) -> int:
    """Checks what the command line names, and shows and writes the results."""
    for file in (options.html, options.junit):
        check_folder(file)
    try:
        plan = planned(options)
    except FuncaotError:
        raise
    except Exception:  # noqa: BLE001  (the user's module, which can't be imported)
        traceback.print_exc()
        sys.stderr.write("funcaot check can't import what it was pointed at: see above.\n")
        return 2
    results, skipped = run(plan)
    if options.html:
        Path(options.html).write_text(page(results), encoding="utf-8")
    if options.junit:
        Path(options.junit).write_text(as_junit(results, skipped), encoding="utf-8")
    show(results, skipped, stream, as_document=options.json)
    if options.github:
        for line in annotations(results, skipped):
            stream.write(f"{line}\n")
    if not results:
        return 2
    strict = options.strict and any(result.warnings() for result in results)
    return 0 if all(result.ok for result in results) and not strict else 1


def planned(options: argparse.Namespace) -> Plan:
    """Imports what the command line names.

    Raises:
        FuncaotError: There is no such thing, or options don't go together.
    """
    found: list[Target | Skipped] = []
    single = len(options.targets) == 1
    for name in options.targets:
        if ":" in name and not Path(name).is_file():
            found.append(Target(name, load(name)))
        else:
            single = False
            found += targets_in(load_place(name), below=options.all)
    if not single and (options.inputs or options.ref):
        raise FuncaotError(
            "funcaot check can't give the same --inputs or --ref to several Functions.",
            expected="one target, named by package.module:Name",
            got=", ".join(options.targets),
            remedy="check that one by itself, or record samples: python -m funcaot record.",
        )
    return Plan(
        options,
        tuple(entry for entry in found if isinstance(entry, Target)),
        tuple(entry for entry in found if isinstance(entry, Skipped)),
        load(options.ref) if options.ref else None,
        read(options.samples) if options.samples else {},
        single,
    )


def check_folder(file: str | None) -> None:
    """Checks that a file can be written, before minutes are spent.

    Raises:
        FuncaotError: There is no such folder.
    """
    if file and not Path(file).absolute().parent.is_dir():
        raise FuncaotError(
            f"funcaot check can't write {file}.",
            expected="a file in a folder that exists",
            remedy=f"make the folder {Path(file).parent} first.",
        )


def run(plan: Plan) -> tuple[list[CheckResult], list[Skipped]]:
    """Checks each target, with progress on the error stream of a terminal.

    Raises:
        FuncaotError: The only target can't be checked; one of several is skipped.
    """
    results: list[CheckResult] = []
    skipped = list(plan.skipped)
    with progress_line(quiet=plan.options.json) as tell:
        for place, target in enumerate(plan.targets):
            if tell is not None and not plan.single:
                tell.start(f"{target.name} ({place + 1} of {len(plan.targets)})")
            try:
                results.append(check_one(plan, target, tell))
            except FuncaotError as error:
                if plan.single:
                    raise
                got = f" ({error.got})" if error.got else ""
                remedy = f" Instead: {error.remedy}" if error.remedy else ""
                skipped.append(Skipped(target.name, f"{error.what}{got}{remedy}"))
    return results, skipped


def check_one(plan: Plan, target: Target, tell: Any) -> CheckResult:
    """Checks one target."""
    options = plan.options
    torch.manual_seed(options.seed)
    inputs = None
    if options.inputs:
        inputs = [evaluate(expression, target.value) for expression in options.inputs]
    elif plan.calls:
        inputs = inputs_for(target.value, plan.calls)
    chosen: dict[str, Any] = {"explore": True} if options.explore else {}
    result = check(
        target.value,
        inputs,
        ref=plan.reference,
        transforms=options.transforms.split(",") if options.transforms else None,
        seed=options.seed,
        progress=tell,
        backend=None if options.backend == "none" else options.backend,
        **chosen,
    )
    if result.name.startswith("<") or not plan.single:  # a lambda, or one of many
        result = replace(
            result, name=target.name if not plan.single else target.name.rpartition(":")[2]
        )
    return result
