"""The text that a function makes of an open size is that of the number."""

import logging

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
