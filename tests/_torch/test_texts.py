"""The text that a function makes of an open size is that of the number."""

import logging
import warnings

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

TEXTS = {
    "f-string": lambda n: f"{n}",
    "with width": lambda n: f"{n:04d}",
    "conversion": lambda n: f"{n!r}",
    "str": str,
    "repr": repr,
    "percent": "%s".__mod__,
    "percent d": "%d".__mod__,
    "format": "{}".format,
    "computed": lambda n: f"{2 * n + 1}",
    "a quotient": lambda n: f"{n / 2}",
    "a comparison": lambda n: f"{n > 3}",
    "in a list": lambda n: str([n]),
    "in a tuple": lambda n: str((n, 2)),
    "in a dictionary": lambda n: str({"n": n}),
    "a torch.Size": lambda n: f"{torch.Size([n, 2])}",
    "a key": lambda n: {f"layer {n}": n}[f"layer {n}"],
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_text_of_a_size(text):
    def function(x):
        return x.sin(), text(x.shape[0])

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (10, 9, 10):
        x = torch.randn(n)
        value, found = compiled(x)
        assert torch.equal(value, x.sin())
        assert found == text(n)


def test_a_slice_of_open_sizes_as_output():
    compiled = funcaot.compile(lambda x: (x * 2, slice(0, x.shape[0])), backend=COMPILER)
    for n in (10, 9, 8):
        part = compiled(torch.ones(n))[1]
        assert part == slice(0, n) and type(part.stop) is int


def test_sizes_that_are_logged_stay_open(caplog):
    def function(x):
        logging.getLogger("texts").warning("rows: %s", x.shape[0])
        return x * 2

    compiled = funcaot.compile(function, backend=COMPILER, dynamic=True)
    for n in (4, 5, 6):
        compiled(torch.ones(n))
    assert len(compiled.entries) == 1
    assert "rows: 4" in caplog.text


def _check(holds, message=""):
    if not holds:
        raise ValueError(message)


def _naming(holds, *, message):
    if not holds:
        raise ValueError("not so: " + message)


class _Checker:
    def check(self, holds, message):
        if not holds:
            raise ValueError(f"{self}: {message}")


def _keeping(holds, message):
    if not holds:
        raise ValueError(message)
    return message


def _counting(holds, message):
    if not holds or len(message) > 5:
        raise ValueError(message)


_checker = _Checker()
_log = logging.getLogger("texts")

# Each writes a text of open sizes that a program of other sizes may leave out.
MESSAGES = {
    "f-string": lambda x: _check(x.shape[0] > 0, f"{x.shape[0]} rows of {x.shape}"),
    "percent": lambda x: _check(x.shape[0] > 0, "%s, not %s" % (x.shape, x.shape[0] + 1)),  # noqa: UP031
    "width": lambda x: _check(x.shape[0] > 0, f"{x.shape[0]:04d} {x.shape!r}" + " rows"),
    "keyword": lambda x: _naming(x.shape[0] > 0, message="{} {}".format(x.shape, x.shape[0])),  # noqa: UP032
    "method": lambda x: _checker.check(x.shape[0] > 0, str(x.shape)),
    "torch": lambda x: torch._assert(x.shape[0] > 0, f"{x.shape[0]}"),
    "logged": lambda x: _log.info(f"{x.shape[0]} rows"),
    "printed": lambda x: print(f"{x.shape[0]} rows", x.shape),
    "warned": lambda x: warnings.warn(f"{x.shape[0]} rows", stacklevel=1),
}
# A text that these write decides what comes out.
USED = {
    "returned": lambda x: _keeping(x.shape[0] > 0, f"{x.shape[0]} rows"),
    "two of them": lambda x: (_check(x.shape[0] > 0, n := f"{x.shape[0]}"), n),
    "measured": lambda x: _counting(x.shape[0] > 0, f"{x.shape[0]}"),
    "its length": lambda x: len(f"{x.shape[0]}"),
}


@pytest.mark.filterwarnings("ignore:.* rows")
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_text_for_a_message_fixes_no_size(message):
    compiled = funcaot.compile(lambda x: (x * 2, message(x))[0], backend=COMPILER, dynamic=True)
    for n in (4, 5, 12):
        compiled(torch.ones(n, 3))
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("text", USED.values(), ids=USED)
def test_a_text_that_is_used_fixes_its_sizes(text):
    def function(x):
        return x * 2, text(x)

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (4, 5, 12, 4):
        value, found = compiled(torch.ones(n, 3))
        assert value.shape == (n, 3) and found == text(torch.ones(n, 3))


def test_the_message_of_a_check_that_fails():
    def function(x):
        _check(x.shape[0] < 6, f"{x.shape} rows")
        return x * 2

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (3, 4, 5):
        compiled(torch.ones(n, 2))
    for n in (7, 8):
        with pytest.raises(ValueError, match=rf"^torch.Size\(\[{n}, 2\]\) rows$"):
            compiled(torch.ones(n, 2))


def test_the_message_of_a_check_whose_error_is_caught():
    def function(x):
        try:
            _check(x.shape[0] > 100, f"{x.shape[0]} rows")
        except ValueError as error:
            return x * 2, str(error)
        return x, ""

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (3, 4, 5, 12):
        assert compiled(torch.ones(n))[1] == f"{n} rows"
