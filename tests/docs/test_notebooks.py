"""Cells that are run again are seen: what they define anew is what runs."""

import gc
import json
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from scripts import docs_pages, run_notebooks

pytest.importorskip("IPython", reason="notebooks' cells are run by IPython")
from IPython.core.interactiveshell import InteractiveShell

HELPER = "def helper(x):\n    return x * {factor}\n"
FUNCTION = """
@funcaot.compile(backend="eager")
def f(x):
    return helper(x).sum()
"""
CLASS = """
class Scaled(funcaot.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * {factor}

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * {factor}
"""
X = torch.tensor([1.0, 2.0])


@pytest.fixture
def notebook(monkeypatch):
    # The shell puts its own there, and empties it in the end.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    shell = InteractiveShell()
    shell.history_manager.enabled = False

    def run(cell):
        result = shell.run_cell(cell, store_history=True, silent=False)
        result.raise_error()
        return result.result

    run.names = shell.user_ns
    run("import funcaot, torch")
    yield run
    shell.history_manager.end_session()
    shell.reset()


def value_and_gradient(f):
    x = X.clone().requires_grad_()
    y = f(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gradient


def test_a_function_that_another_one_calls(notebook):
    notebook(HELPER.format(factor=2))
    notebook(FUNCTION)
    for factor in (2, 5, 5, 2):
        notebook(HELPER.format(factor=factor))
        value, gradient = value_and_gradient(notebook.names["f"])
        assert_close(value, factor * X.sum())
        assert_close(gradient, torch.full((2,), float(factor)))


def test_the_compiled_function_itself(notebook):
    notebook(HELPER.format(factor=2))
    notebook(FUNCTION)
    value_and_gradient(notebook.names["f"])
    notebook(FUNCTION.replace("helper(x)", "(10 * helper(x))"))
    assert_close(notebook.names["f"](X), 20 * X.sum())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_class(notebook, compiled):
    notebook(CLASS.format(factor=2))
    notebook("def g(x):\n    return Scaled.apply(x)")
    if compiled:
        notebook('g = funcaot.compile(g, backend="eager")')
    for factor in (2, 7, 3):
        notebook(CLASS.format(factor=factor))
        value, gradient = value_and_gradient(notebook.names["g"])
        assert_close(value, factor * X)
        assert_close(gradient, torch.full((2,), float(factor)))
        rows = torch.func.vmap(notebook.names["g"])(torch.stack([X, X]))
        assert_close(rows, factor * torch.stack([X, X]))


def test_a_class_of_modules(notebook):
    cell = """
class Layer(torch.nn.Module):
    def forward(self, x):
        return x * {factor}
"""
    notebook(cell.format(factor=2))
    notebook('model = funcaot.compile(Layer(), backend="eager")')
    assert_close(notebook.names["model"](X), 2 * X)
    notebook(cell.format(factor=3))
    # As in eager: an object keeps its class until it is made anew.
    assert_close(notebook.names["model"](X), 2 * X)
    notebook('model = funcaot.compile(Layer(), backend="eager")')
    assert_close(notebook.names["model"](X), 3 * X)


def test_code_that_is_replaced_in_place(notebook):
    """What ``%autoreload`` does to functions of a module that was edited."""
    notebook(HELPER.format(factor=2))
    notebook(FUNCTION)
    value_and_gradient(notebook.names["f"])
    notebook("kept = helper")
    notebook(HELPER.format(factor=4))
    notebook("kept.__code__ = helper.__code__; helper = kept")
    value, gradient = value_and_gradient(notebook.names["f"])
    assert_close(value, 4 * X.sum())
    assert_close(gradient, torch.full((2,), 4.0))


def test_constants_and_closures_of_cells(notebook):
    notebook("scale = 2.0")
    notebook('f = funcaot.compile(lambda x: x * scale, backend="eager")')
    assert_close(notebook.names["f"](X), 2 * X)
    notebook("scale = torch.tensor(3.0)")
    assert_close(notebook.names["f"](X), 3 * X)
    notebook("scale = torch.tensor(4.0)")
    assert_close(notebook.names["f"](X), 4 * X)


def test_what_a_cell_replaces_is_freed(notebook):
    """A cell that is run twenty times doesn't keep twenty programs."""
    notebook(CLASS.format(factor=2))
    cell = '@funcaot.compile(backend="eager")\ndef g(x):\n    return Scaled.apply(x)'
    seen = []
    for factor in range(5):
        notebook(CLASS.format(factor=factor + 1))
        notebook(cell)
        value_and_gradient(notebook.names["g"])
        seen.append(weakref.ref(notebook.names["g"]))
    gc.collect()
    assert [ref() is None for ref in seen] == [True] * 4 + [False]


def test_a_report_shows_itself(notebook):
    notebook(HELPER.format(factor=2))
    notebook(FUNCTION)
    notebook("f(torch.ones(3))")
    report = notebook("funcaot.report(f)")
    shell_output = notebook("get_ipython().display_formatter.format(funcaot.report(f))")
    assert shell_output[0]["text/html"] == report._repr_html_()


def test_lines_of_cells_are_named(notebook):
    """What is kept says which line of which cell made it."""
    notebook(
        "@funcaot.compile(backend='eager', policy='save_all')\n"
        "def h(x):\n    y = x.sin()\n    return (y * y).sum()"
    )
    notebook("h(torch.ones(3, requires_grad=True)).backward()")
    (entry,) = notebook("funcaot.report(h)").entries
    assert any(str(each.source).endswith(":3") for each in entry.residuals if each.source)
    (shown,) = [notebook("funcaot.report(h)")._repr_html_()]
    assert "In [" in shown
    assert "ipython-input" not in shown


TUTORIALS = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text())
    made = run_notebooks.run(notebook)
    for before, after in zip(notebook["cells"], made["cells"], strict=True):
        assert [each["output_type"] for each in before.get("outputs", [])] == [
            each["output_type"] for each in after.get("outputs", [])
        ], "run `make notebooks`"
    page = docs_pages.notebook_page(made, path.stem)
    assert page.startswith("# ")
    assert "<div" in page


def test_there_are_two_tutorials():
    assert [path.stem for path in TUTORIALS] == ["force-matching", "functions"]


def test_a_cell_that_raises_fails_the_run():
    cell = {"cell_type": "code", "source": ["1 / 0"], "metadata": {}, "outputs": []}
    with pytest.raises(run_notebooks.CellError, match="ZeroDivisionError") as caught:
        run_notebooks.run({"cells": [cell]})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
