"""``python -m funcaot record script.py``: run a program, keep what its Functions are given."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TextIO

from funcaot.errors import FuncaotError
from funcaot.functions.interception import observing
from funcaot.testing.command.samples_file import Recorder, write

DEFAULT = Path("funcaot-samples.pt")
EPILOG = """\
examples:
  python -m funcaot record train.py --epochs 1
  python -m funcaot record -m pytest tests/test_layers.py
  python -m funcaot check mypackage --all --samples funcaot-samples.pt
While the program runs, its Functions go through funcaot's operator.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "record",
        help="run a program and keep what its Functions are called with",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--output", type=Path, default=DEFAULT, help="where to write the samples")
    command.add_argument("-m", dest="module", action="store_true", help="run a module")
    command.add_argument("program", help="a script, or with -m a module")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")


def record(options: argparse.Namespace, stream: TextIO) -> int:
    """Runs the program, then writes what was seen, also after it ended by an exception.

    Raises:
        FuncaotError: There is no such script.
    """
    if not options.module and not Path(options.program).is_file():
        raise FuncaotError(
            f"funcaot record can't find the script {options.program}.",
            remedy="check the path, or add -m before the name of a module.",
        )
    recorder = Recorder(options.program)
    before, path = sys.argv, list(sys.path)
    sys.argv = [options.program, *options.arguments]
    sys.path.insert(0, "" if options.module else str(Path(options.program).absolute().parent))
    status = 0
    try:
        with observing(recorder):
            if options.module:
                runpy.run_module(options.program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(options.program, run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv, sys.path[:] = before, path
        write(options.output, recorder.calls)
        show(recorder, options.output, stream)
    return status


def show(recorder: Recorder, output: Path, stream: TextIO) -> None:
    """Says which Functions were seen."""
    for name, calls in sorted(recorder.calls.items()):
        stream.write(f"{name}: {len(calls)} kind(s) of calls\n")
    for name, count in sorted(recorder.left_out.items()):
        stream.write(f"{name}: {count} call(s) left out, with arguments that can't be written\n")
    seen = len(recorder.calls)
    stream.write(f"samples of {seen} Function(s) are in {output}\n")
