"""Options are read and set as attributes of the module too, and nothing is taken without effect."""

import pytest

import funcaot
from funcaot import config
from funcaot.errors import FuncaotError


@pytest.fixture(autouse=True)
def as_before():
    before = config.get()
    yield
    config.restore(before)


def test_an_option_that_is_assigned_is_set():
    funcaot.config.fast_path = False
    assert not config.get().fast_path and not funcaot.config.fast_path
    with config.patch(fast_path=True):
        assert funcaot.config.fast_path
    assert not funcaot.config.fast_path


def test_pytest_can_set_one_for_a_while(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(config, "entries_per_function", 3)
        assert config.get().entries_per_function == 3
    assert config.get().entries_per_function == config.Config().entries_per_function


def test_names_that_no_option_has_are_refused():
    with pytest.raises(FuncaotError, match="There is no option 'fastpath'"):
        funcaot.config.fastpath = False
    with pytest.raises(FuncaotError, match="a value that it can't take"):
        funcaot.config.fast_path = "no"
    with pytest.raises(AttributeError, match="has no attribute 'fastpath'"):
        _ = funcaot.config.fastpath
