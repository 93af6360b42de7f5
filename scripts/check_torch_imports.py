"""Private names of torch are used in ``funcaot/_torch/`` only, with the version differences.

Private is a name under ``torch`` with a part that starts with an underscore, and what torch keeps
open to change without saying so in the name (``torch.fx.experimental``). Both imports and
attribute chains count.

    python scripts/check_torch_imports.py [PATH ...]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ALLOWED = Path("funcaot/_torch")
EXPERIMENTAL = ("torch.fx.experimental",)


def is_private(name: str) -> bool:
    """Whether the dotted ``name`` is one that only ``funcaot/_torch/`` may use."""
    first, *rest = name.split(".")
    if first != "torch":
        return False
    if any(name == e or name.startswith(e + ".") for e in EXPERIMENTAL):
        return True
    return any(part.startswith("_") and not part.endswith("__") for part in rest)


def dotted_name(node: ast.expr) -> str | None:
    """``a.b.c`` for an attribute chain that starts at a plain name, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join((node.id, *reversed(parts)))


def names_used(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that an import or an attribute access reaches for."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute) and (name := dotted_name(node)):
        yield name


def offenders(path: Path) -> Iterator[str]:
    """Yield a line for every line of ``path`` that uses a private name, with the longest one."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        for name in filter(is_private, names_used(node)):
            found[node.lineno] = max(found.get(node.lineno, ""), name, key=len)
    for line, name in sorted(found.items()):
        yield f"{path}:{line}: {name} is private to torch: import it in {ALLOWED}/"


def main(arguments: list[str]) -> int:
    """Print the offenders; 1 when there are any."""
    files = (file for root in arguments or ["funcaot"] for file in sorted(Path(root).rglob("*.py")))
    found = [line for file in files if ALLOWED not in file.parents for line in offenders(file)]
    print("\n".join(found) if found else "torch imports: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
