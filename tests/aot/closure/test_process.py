"""Settings of the process, and what Python keeps on functions, are compared if code names them."""

import contextlib
import decimal
import logging
import os
import sys
import threading
from multiprocessing import current_process
from threading import current_thread

import pytest
import torch

import funcaot
from funcaot.aot.state.of_functions import OfFunctions
from tests.hostile import COMPILER


def helper(x, k=2):
    """One."""
    return x * k


class Named:
    """One."""


def either(x, condition):
    return x * (2 if condition else 3)


def by_calling(get, set_, value):
    return get, set_, value


def by_attribute(holder, name, value):
    return lambda: getattr(holder, name), lambda new: setattr(holder, name, new), value


CUDA = torch.backends.cuda
CASES = {
    "threads": (
        lambda x: x * torch.get_num_threads(),
        by_calling(torch.get_num_threads, torch.set_num_threads, 3),
    ),
    "cudnn": (
        lambda x: either(x, torch.backends.cudnn.benchmark),
        by_attribute(torch.backends.cudnn, "benchmark", True),
    ),
    "mkldnn": (
        lambda x: either(x, torch.backends.mkldnn.enabled),
        by_attribute(torch.backends.mkldnn, "enabled", False),
    ),
    "attention": (
        lambda x: either(x, torch.backends.cuda.math_sdp_enabled()),
        by_calling(CUDA.math_sdp_enabled, CUDA.enable_math_sdp, False),
    ),
    "anomalies": (
        lambda x: either(x, torch.is_anomaly_enabled()),
        by_calling(torch.is_anomaly_enabled, lambda on: torch.set_anomaly_enabled(on), True),
    ),
    "warnings": (
        lambda x: either(x, torch.is_warn_always_enabled()),
        by_calling(torch.is_warn_always_enabled, torch.set_warn_always, True),
    ),
    "deterministic": (
        lambda x: either(x, torch.are_deterministic_algorithms_enabled()),
        by_calling(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
        ),
    ),
    "default dtype": (
        lambda x: either(x, torch.get_default_dtype() == torch.float64),
        by_calling(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
    "decimals": (
        lambda x: x * float(decimal.Decimal(1) / 3),
        by_calling(
            lambda: decimal.getcontext().prec,
            lambda value: setattr(decimal.getcontext(), "prec", value),
            2,
        ),
    ),
    "folder": (lambda x: x * len(os.getcwd()), by_calling(os.getcwd, os.chdir, "/")),
    "recursion": (
        lambda x: x * sys.getrecursionlimit(),
        by_calling(sys.getrecursionlimit, sys.setrecursionlimit, 5000),
    ),
    "doc": (lambda x: x * len(helper.__doc__), by_attribute(helper, "__doc__", "Another.")),
    "name": (lambda x: x * len(helper.__name__), by_attribute(helper, "__name__", "a")),
    "qualname": (lambda x: x * len(helper.__qualname__), by_attribute(helper, "__qualname__", "a")),
    "module": (lambda x: x * len(helper.__module__), by_attribute(helper, "__module__", "a")),
    "annotations": (
        lambda x: x * len(helper.__annotations__),
        by_attribute(helper, "__annotations__", {"x": int}),
    ),
    "defaults": (lambda x: x * helper.__defaults__[0], by_attribute(helper, "__defaults__", (7,))),
    "defaults that count": (lambda x: helper(x), by_attribute(helper, "__defaults__", (7,))),
    "keyword defaults": (
        lambda x: either(x, helper.__kwdefaults__),
        by_attribute(helper, "__kwdefaults__", {"k": 7}),
    ),
    "doc of a class": (
        lambda x: x * len(Named.__doc__),
        by_attribute(Named, "__doc__", "Another."),
    ),
    "name of a class": (
        lambda x: x * len(type(Named()).__name__),
        by_attribute(Named, "__name__", "A"),
    ),
}
if torch.backends.opt_einsum.is_available():
    # Without the package the flag is False, and torch refuses to set it.
    CASES["einsum"] = (
        lambda x: either(x, torch.backends.opt_einsum.enabled),
        by_attribute(torch.backends.opt_einsum, "enabled", False),
    )


@contextlib.contextmanager
def changed(get, set_, value):
    before = get()
    # Torch's own tests, once imported, forbid to set flags of backends in another way.
    allowed = getattr(torch.backends, "__allow_nonbracketed_mutation")
    with allowed():
        set_(value)
    try:
        yield
    finally:
        with allowed():
            set_(before)


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("case", CASES)
def test_a_change_is_noticed(case, backend):
    function, setting = CASES[case]
    called = funcaot.compile(function, backend=backend)
    for is_changed in (False, True, True, False):
        with changed(*setting) if is_changed else contextlib.nullcontext():
            assert called(torch.ones(2)).tolist() == function(torch.ones(2)).tolist()
    assert len(funcaot.report(called).entries) == 2


def test_the_profiler_is_noticed():
    def function(x):
        return either(x, torch.autograd._profiler_enabled())

    called = funcaot.compile(function, backend="eager")
    for _ in range(2):
        assert called(torch.ones(1)).item() == 3
        with torch.autograd.profiler.profile():
            assert called(torch.ones(1)).item() == 2


LOGGER = logging.getLogger(__name__)


def test_what_a_logger_takes_is_noticed_where_code_asks_it():
    def function(x):
        return either(x, LOGGER.isEnabledFor(logging.INFO))

    called = funcaot.compile(function, backend="eager")
    x = torch.ones(1)
    try:
        for level in (logging.ERROR, logging.DEBUG, logging.ERROR, logging.INFO):
            LOGGER.setLevel(level)
            assert called(x).item() == function(x).item()
        logging.disable(logging.CRITICAL)
        assert called(x).item() == function(x).item()
    finally:
        logging.disable(logging.NOTSET)
        LOGGER.setLevel(logging.NOTSET)


def test_what_is_not_named_is_not_compared():
    called = funcaot.compile(lambda x: helper(x), backend="eager")
    called(torch.ones(2))
    with changed(*CASES["threads"][1]), changed(*CASES["doc"][1]), changed(*CASES["cudnn"][1]):
        called(torch.ones(2))
    assert len(funcaot.report(called).entries) == 1


@pytest.mark.parametrize("which", [current_thread, current_process, threading.enumerate])
def test_a_thread_that_starts_meanwhile_stays_known(which, monkeypatch):
    """A capture put back what it read of the table of threads, in which others had come since."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, args=(20,))

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(x.numpy() * (2 if which() else 3))

    def starting_one(act):
        def acted(self, looked):
            if thread.ident is None:
                thread.start()
            return act(self, looked)

        return acted

    for name in ("take_back", "leave"):
        monkeypatch.setattr(OfFunctions, name, starting_one(getattr(OfFunctions, name)))
    compiled = funcaot.compile(lambda x: Double.apply(x) + 0, backend=COMPILER)
    try:
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
            assert thread in threading.enumerate()
    finally:
        ended.set()
        thread.join()
