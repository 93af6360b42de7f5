"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import funcaot

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(funcaot.__path__, "funcaot.")
    if not module.name.endswith("__main__")
)


def examples(name):
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(importlib.import_module(name)) if test.examples]


# An example in a docstring is interactive use, which hypothesis can't know.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_run(module, capsys):
    if module == "funcaot.ase":
        pytest.importorskip("ase", reason="an optional dependency")
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in examples(module):
        runner.run(test)
    assert runner.failures == 0, capsys.readouterr().out
