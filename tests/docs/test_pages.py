"""Every code block of every page runs: Python block after block, commands with what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, ROOT

SLOW = {"deploy", "testing"}
# What a page doesn't say again: names that its blocks use, and what stands in a file of its own.
BEFORE = {
    "distributed": (
        "import torch, funcaot\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "store = torch.distributed.HashStore()\n"
        "torch.distributed.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "from torch.nn import Linear, Sequential, Tanh\n"
        "module = Sequential(Linear(3, 4), Tanh(), Linear(4, 1, bias=False))\n"
        "x, forces = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)\n"
    ),
    "recompilation": "import funcaot",
    "testing": (
        "import torch\n"
        "from layers import Sharpen\n"
        "from funcaot.testing import Limitation, opinfo\n"
        "from funcaot.testing.samples import unary\n"
        "from funcaot.testing.transforms.record import Transform"
    ),
}
# Languages that aren't code, or that other tests run: diffs by test_changing, generated reference.
NOT_RUN = {"text", "diff", "{toctree}", "{eval-rst}", "{include}", "{glossary}", ""}


def of_pages(language):
    for path in pages.pages():
        if any(pages.blocks(path, language)):
            marks = [pytest.mark.slow] if path.stem in SLOW else []
            yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", list(of_pages("python")))
@pytest.mark.filterwarnings("ignore::pytest.PytestAssertRewriteWarning")
def test_python(path, tmp_path):
    namespace = {"__name__": f"docs.{path.stem}"}
    found = list(pages.blocks(path, "python"))
    with pages.inside(tmp_path):
        if path.stem == "testing":
            write_layers(tmp_path)
            found = found[1:]
        exec(BEFORE.get(path.stem, ""), namespace)
        for block in found:
            if path.stem == "distributed" and "vectors" in block.text:
                namespace["parameters"] = found_parameters = list(namespace["model"].parameters())
                namespace["vectors"] = found_parameters
            if "raise_for_failures" in block.text:
                # The page's Function has mistakes.
                from funcaot.testing.generator import Mismatch

                with pytest.raises(Mismatch, match="Sharpen fails"):
                    pages.run(path, block, namespace)
            else:
                pages.run(path, block, namespace)
    if path.stem == "distributed":
        namespace["torch"].distributed.destroy_process_group()
    if path.stem == "testing":
        namespace["test_gradient"].hypothesis.inner_test  # noqa: B018 (hypothesis took it)


def test_every_block_is_of_a_kind_that_runs():
    kinds = {(path.stem, b.language) for path in pages.pages() for b in pages.blocks(path)}
    assert {kind for kind in kinds if kind[1] not in NOT_RUN | {"python", "console"}} == set()


# --- commands ----------------------------------------------------------------------------------


def write_layers(folder: Path) -> None:
    """The files that the page on testing speaks of, as it shows them."""
    python = list(pages.blocks(DOCS / "testing.md", "python"))
    (folder / "layers.py").write_text(python[0].text)
    (test,) = [block.text for block in python if "def test_sharpen" in block.text]
    (folder / "test_layers.py").write_text(test)


def commands(path):
    """Each command of a page with the lines that are shown below it."""
    for block in pages.blocks(path, "console"):
        shown: list[str] = []
        command = None
        for line in block.text.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command, shown
                command, shown = line.removeprefix("$ "), []
            else:
                shown.append(line)
        assert command is not None
        yield command, shown


COMMANDS = [
    pytest.param(path, command, shown, id=f"{path.stem}: {command[:50]}")
    for path in pages.pages()
    for command, shown in commands(path)
]
# Commands that need what a test hasn't: other tests run the examples.
ELSEWHERE = re.compile(
    r"pip install \.$|python examples/|python -m funcaot (record train\.py|check mypackage)"
)


def run_here(command, folder, columns=100):
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        "COLUMNS": str(columns),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = re.sub(r"^pytest", f"{sys.executable} -m pytest -p no:cacheprovider", command)
    command = re.sub(r"^python", sys.executable, command)
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("path", "command", "shown"), COMMANDS)
def test_console(path, command, shown, tmp_path):
    if ELSEWHERE.match(command):
        assert shown == [] or "examples" in command
        return
    write_layers(tmp_path)
    printed = run_here(command, tmp_path)
    for line in filter(None, map(told, shown)):
        assert line in " ".join(printed.split()), f"{line!r} isn't in\n{printed}"


def told(line: str) -> str:
    """What of a shown line has to be printed: of a table's row, the names and verdicts.

    Numbers of tests, names and verdicts count; where lines are broken, and long notes, don't.
    """
    if line.strip() in ("...", "") or line.startswith(("E ", " ")):
        return ""
    row = re.match(r"([a-z_ ]+?) +(ok|WRONG|ERROR|WARN|--)( |$)", line)
    if row:
        return f"{row[1]} {row[2]}"
    return " ".join(line.split())


def test_records_and_whole_packages(tmp_path):
    """The two commands about programs of one's own, with such a program."""
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").write_text("")
    write_layers(tmp_path)
    (tmp_path / "layers.py").rename(tmp_path / "mypackage" / "layers.py")
    (tmp_path / "train.py").write_text(
        "import sys, torch\nfrom mypackage.layers import Sharpen\n"
        "assert sys.argv[1:] == ['--epochs', '1']\n"
        "Sharpen.apply(torch.rand(3, dtype=torch.float64, requires_grad=True)).sum()\n"
    )
    record, check = (
        command
        for command, _ in commands(DOCS / "testing.md")
        if command.startswith(("python -m funcaot record", "python -m funcaot check mypackage"))
    )
    run_here(record, tmp_path)
    assert (tmp_path / "funcaot-samples.pt").exists()
    printed = run_here(f"{check} --transforms grad", tmp_path)
    assert re.search(r"gradient +WRONG", printed), printed
