"""What has to be looked at for a new release of torch: ``make new-torch TORCH=x`` prints it.

    python scripts/new_torch.py [--without-tests]

First the private names that aren't there any more, then the changes of `funcaot._torch.patch_table`
whose targets look different, then the tests which tell whether each change still works and is
still needed, and the random programs and the database on Inductor. 1 if anything is to be done.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    (["tests/_torch", "tests/backends"], "long or not slow"),
    (["tests/aot/programs/test_random_programs.py"], "slow"),
    (["tests/special_values", "tests/silent_errors"], "not slow"),
)


def missing_names(root: Path) -> Iterator[str]:
    """Names that a module of ``_torch`` imports from torch, and that aren't there."""
    for path in sorted((root / "funcaot/_torch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                for alias in node.names:
                    if not is_there(str(node.module), alias.name):
                        yield f"{path.relative_to(root)}:{node.lineno}: {node.module}.{alias.name}"


def is_there(module: str, name: str) -> bool:
    """Whether a module has a name, or a module in it."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def different_patches() -> Iterator[str]:
    """Changes to torch that can't be made, with what is lost."""
    from funcaot._torch.patch_table import PATCHES

    for patch in PATCHES:
        difference = patch.difference() if patch.concerns_this_torch else None
        if difference is not None:
            yield f"{patch.name} ({patch.where}): {difference}; {patch.without}"


def print_all(title: str, lines: Iterator[str]) -> bool:
    """Print a list; whether there was anything in it."""
    found = list(lines)
    print(f"{title}: {len(found) or 'none'}")
    for line in found:
        print(f"  {line}")
    return bool(found)


def main(arguments: list[str]) -> int:
    """Print everything; 1 if there is something to do."""
    import torch

    sys.path.insert(0, str(ROOT))
    print(f"torch {torch.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = print_all("Private names that are missing", missing_names(ROOT))
        if wrong:  # The library can't be imported then.
            return 1
        wrong = print_all("Changes to torch that can't be made", different_patches())
    if "--without-tests" not in arguments:
        for paths, marks in TESTS:
            command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", marks, *paths]
            print("==", *command[2:], flush=True)
            wrong |= bool(subprocess.run(command, cwd=ROOT).returncode)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
