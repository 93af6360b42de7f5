"""Other people's libraries are in an environment of their own: see ``make test-third-party``.

With ``FUNCAOT_THIRD_PARTY_TABLE`` set to a path, a run writes what it found there, as the table of
``docs/third-party.md``. ``FUNCAOT_THIRD_PARTY_COMPILER=torch.compile`` says what another compiler
makes of models that ``training.check`` trains.
"""

import importlib.metadata
import os
from pathlib import Path

import pytest

if os.environ.get("FUNCAOT_THIRD_PARTY") != "1":
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]

# The library that a test or a case is of, where its name doesn't say so.
LIBRARIES = {
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
    "visnet": "torch-geometric",
    "deepmd": "deepmd-kit",
    "xitorch_optimize": "xitorch",
    "xitorch_integrals": "xitorch",
    "with_fabric": "lightning-fabric",
    "with_accelerate": "accelerate",
    "with_transformers": "transformers",
}
COLUMNS = (
    "library",
    "version",
    "what",
    "values, gradients, parameters",
    "programs",
    "ratio",
    "seconds",
)
rows: list[str] = []


def library_of(name, case):
    """The library that a test is of, and its version: two empty texts if no name is a library's."""
    for found in (case.partition(" ")[0], case.partition("-")[0], name):
        library = LIBRARIES.get(found, found)
        try:
            return library, importlib.metadata.version(library)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            pass  # Not a library, or no name at all.
    return "", ""


def outcome_of(report, error):
    """What a test found, in few words."""
    if error is None or report.skipped:
        return "equal" if report.passed else "skipped"
    first = str(error.value).strip().partition("\n")[0].replace("|", "/")
    return f"{error.type.__name__}: {first[:80]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note what a test found."""
    report = yield
    path = os.environ.get("FUNCAOT_THIRD_PARTY_TABLE")
    if path and report.when == "call":
        import training

        name, _, case = item.name.removeprefix("test_").removesuffix("]").partition("[")
        library, version = library_of(name, case)
        programs, ratio = training.measured.pop() if training.measured else ("", None)
        shown = "" if ratio is None else f"{ratio:.2f}"
        what = " ".join(filter(None, (name.replace("_", " "), case)))
        found = outcome_of(report, call.excinfo), programs, shown, f"{report.duration:.1f}"
        rows.append(f"| {' | '.join(map(str, (library, version, what, *found)))} |")
        training.measured.clear()
    return report


def pytest_sessionfinish():
    """Write the table."""
    path = os.environ.get("FUNCAOT_THIRD_PARTY_TABLE")
    if path and rows:
        table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *sorted(rows)]
        Path(path).write_text("\n".join(table) + "\n")
