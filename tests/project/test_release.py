"""Files that a repository is expected to have say what is so."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import funcaot

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def loaded(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_has_this_version():
    citation = loaded("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["title"] == PROJECT["name"]
    assert citation["version"] == funcaot.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_changelog_has_this_version():
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(set(versions)) == len(versions)
    if ".dev" in funcaot.__version__:
        assert versions[0] == "Unreleased"
    else:
        assert funcaot.__version__ in versions


def test_the_workflow_runs_everything_on_every_version():
    jobs = loaded(".github/workflows/ci.yml")["jobs"]
    matrix = jobs["everything"]["strategy"]["matrix"]
    pythons = [
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if re.search(r":: 3\.\d+$", classifier)
    ]
    assert matrix["python"] == pythons
    (torch,) = [each for each in PROJECT["dependencies"] if each.startswith("torch")]
    first, last = (int(number) for number in re.findall(r"2\.(\d+)", torch))
    assert matrix["torch"] == [f"2.{minor}.0" for minor in range(first, last)]
    commands = [step.get("run") for step in jobs["everything"]["steps"]]
    assert ".ci/run" in commands
    (step,) = [step for step in jobs["everything"]["steps"] if step.get("run") == ".ci/run"]
    assert step["env"]["TORCH"] == "${{ matrix.torch }}"
    targets = re.findall(r"make ([\w-]+)", str(jobs["newest-torch"]))
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


def test_issue_templates_are_forms():
    paths = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(paths) == 4
    for path in paths:
        form = yaml.safe_load(path.read_text())
        if path.stem == "config":
            assert set(form) == {"blank_issues_enabled"}
            continue
        assert {"name", "description", "body"} <= set(form)
        kinds = {"markdown", "textarea", "input", "checkboxes", "dropdown"}
        for field in form["body"]:
            assert field["type"] in kinds
            assert field["type"] == "markdown" or field["id"]
        for file in re.findall(r"\((docs/[\w/.-]+)\)", path.read_text()):
            assert (ROOT / file).exists()


def test_the_hooks_run_what_lint_runs():
    hooks = [hook for repo in loaded(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    for command in re.findall(r"\$\(RUN\)/(?:python )?(\S+)", lint):
        assert any(command in hook["entry"] for hook in hooks), command
    for hook in hooks:
        for file in re.findall(r"scripts/\w+\.py", hook["entry"]):
            assert (ROOT / file).exists()


def dry_run(*arguments):
    made = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return made.stdout


def test_the_newest_torch_isnt_held_back():
    told = dry_run("test", "TORCH=nightly-like")
    assert ".venv-nightly-like" in told
    assert "sed '/^torch==/d'" in told
    assert re.search(r"pip install .*--pre --upgrade torch\b", told)


def test_another_torch_has_its_own_pin():
    told = dry_run("test", "TORCH=2.99.0")
    assert "sed 's/^torch==.*/torch==2.99.0/'" in told
    assert "--upgrade torch" not in told


def test_security_says_how_to_report():
    text = (ROOT / "SECURITY.md").read_text()
    assert "Don't open an issue with the details" in text
    assert "funcaot.load" in text
