"""Other people's libraries are in an environment of their own: see ``make test-third-party``.

With ``FUNCAOT_THIRD_PARTY_TABLE`` set to a path, a run writes what it found there, as the table of
``docs/third-party.md``.
"""

import importlib.metadata
import os
from pathlib import Path

import pytest

if os.environ.get("FUNCAOT_THIRD_PARTY") != "1":
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]

# The library that a test is of, where its name doesn't say so.
LIBRARIES = {
    "trainer": "accelerate",
    "vision_transformer": "transformers",
    "mace": "mace-torch",
    "zuko_backwards": "zuko",
    "torchpme": "torch-pme",
    "schnet_of_pytorch_geometric": "torch-geometric",
    "graph_convolutions": "torch-geometric",
    "egnn": "egnn-pytorch",
    "pytorch_optimizer": "pytorch-optimizer",
    "structural_similarity": "pytorch-msssim",
    "curvlinops": "curvlinops-for-pytorch",
    "laplace": "laplace-torch",
    "backpack": "backpack-for-pytorch",
    "torchmd_net": "torchmd-net",
    "force_field": "schnetpack",
    "force_field_says_what_is_missing": "schnetpack",
    "torch_harmonics": "torch-harmonics",
}
rows: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note what a test found."""
    report = yield
    path = os.environ.get("FUNCAOT_THIRD_PARTY_TABLE")
    if path and report.when == "call":
        import training

        name, _, kind = item.name.removeprefix("test_").partition("[")
        library = (
            kind.rstrip("]").partition(" ")[0] if name == "layers" else LIBRARIES.get(name, name)
        )
        version = importlib.metadata.version(library)
        programs, ratio = training.measured.pop() if training.measured else ("", None)
        shown = "" if ratio is None else f"{ratio:.2f}"
        what = " ".join(filter(None, (name.replace("_", " "), kind.rstrip("]"))))
        outcome = "equal" if report.passed else "fails"
        rows.append(f"| {library} | {version} | {what} | {outcome} | {programs} | {shown} |")
        training.measured.clear()
    return report


def pytest_sessionfinish():
    """Write the table."""
    path = os.environ.get("FUNCAOT_THIRD_PARTY_TABLE")
    if path and rows:
        header = "| library | version | what | values, gradients, parameters | programs | ratio |"
        table = [header, "|---|---|---|---|---|---|", *sorted(rows)]
        Path(path).write_text("\n".join(table) + "\n")
