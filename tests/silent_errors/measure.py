"""Measure who is right about each case, each in a process of its own, and keep it as JSON.

A compiler that crashes takes its process with it, so a case is run in a child that is forked after
the imports.
"""

from __future__ import annotations

import fnmatch
import json
import multiprocessing
import sys
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.silent_errors.records import Case
from tests.silent_errors.runner import COMPILERS, Verdict, judge
from tests.silent_errors.table import CASES

FOLDER = Path(__file__).parent / "measured"
CRASHES = "crashes"
LIMIT_S = 300

Verdicts = dict[str, dict[str, dict[str, str]]]


def version() -> str:
    """The version of torch, without what it was built for."""
    return torch.__version__.split("+")[0]


def in_a_child(case: Case, compiler: str) -> Verdict:
    """The verdict on one case; a child that dies or hangs has a verdict too."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(case, compiler, sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_S):
            child.kill()
            return Verdict(CRASHES, f"no answer in {LIMIT_S} s")
        return receiver.recv()
    except EOFError:
        child.join()
        return Verdict(CRASHES, f"exit code {child.exitcode}")
    finally:
        child.join()


def _report(case: Case, compiler: str, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    sender.send(judge(case, COMPILERS[compiler]))


def measure(cases: Iterable[str], compilers: Iterable[str]) -> Verdicts:
    """Measure the cases and compilers that match patterns; the others stay as they were."""
    path = FOLDER / f"{version()}.json"
    found: Verdicts = json.loads(path.read_text())["cases"] if path.exists() else {}
    chosen = [c for c in COMPILERS if any(fnmatch.fnmatch(c, p) for p in compilers)]
    for index, case in enumerate(CASES):
        if not any(fnmatch.fnmatch(case.name, pattern) for pattern in cases):
            continue
        for compiler in chosen:
            sys.stderr.write(f"\r\x1b[K{index + 1}/{len(CASES)} {case.name}: {compiler}")
            sys.stderr.flush()
            verdict = in_a_child(case, compiler)
            detail = verdict.detail[:200]
            found.setdefault(case.name, {})[compiler] = {
                "status": verdict.status,
                "detail": detail,
            }
        save(path, found)
    sys.stderr.write("\n")
    return found


def save(path: Path, found: Verdicts) -> None:
    """Write what was found, in the order of the table; cases that are gone are left out."""
    kept = {case.name: found[case.name] for case in CASES if case.name in found}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"torch": version(), "cases": kept}, indent=1) + "\n")


def load() -> dict[str, Verdicts]:
    """All measurements, by version of torch."""
    files = sorted(FOLDER.glob("*.json"))
    return {(found := json.loads(file.read_text()))["torch"]: found["cases"] for file in files}
