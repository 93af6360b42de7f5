"""Random Python with state, and lives of it: ``test_lives`` compares a compiled one with eager.

A program is some of ``statements.txt`` in a function that reaches the objects of ``world.txt`` by
an argument, its closure or a global. Between calls, some of ``changes.txt`` happen.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import torch

import funcaot
from tests.aot.state.lives.compared import Compared
from tests.aot.state.lives.modules import module_of, tensors_in

HERE = Path(__file__).parent
RESULTS = (
    "x",
    "(x, w.n)",
    "{'y': x, 'b': w.buf}",
    "[x, *w.lst]",
    "(x, w)",
    "(x.sum(), w.tup)",
    "(x, w.f, w.s)",
    "(x, w.last)",
    "NT(x, w.d)",
)
_FUNCTIONS = """
def get_global(): return G
def global_bump():
    global G
    G += 1
def make(w0):
    c = 0
    def counter():
        nonlocal c
        c += 1
        return c
    def draws(n): return torch.randn(3) * n
    def f({parameters}):
        {body}
    return f, lambda: c
"""


@functools.cache
def _texts(name: str) -> tuple[str, ...]:
    return tuple((HERE / f"{name}.txt").read_text().strip("\n").split("\n\n"))


def program(rng: random.Random) -> tuple[str, str]:
    """The text of a module with a random function, and how that reaches its world."""
    body = [rng.choice(_texts("statements")) for _ in range(rng.randint(3, 9))]
    if rng.random() < 0.15:
        at = rng.randrange(len(body))
        tried = body[at].replace("\n", "\n    ")
        raising = "    if w.n > 2: raise RuntimeError('z')\nexcept RuntimeError: w.n = 0"
        body[at] = f"try:\n    {tried}\n{raising}"
    where = rng.choice(("argument", "closure", "global"))
    start = {"argument": [], "closure": ["w = w0"], "global": ["w = WORLD"]}[where]
    lines = "\n".join([*start, *body, f"return {rng.choice(RESULTS)}"]).replace("\n", "\n        ")
    parameters = "x, w" if where == "argument" else "x"
    world = (HERE / "world.txt").read_text()
    return world + _FUNCTIONS.format(parameters=parameters, body=lines), where


class Life:
    """One world with its function, compiled or not."""

    def __init__(self, text: str, where: str, backend: str | None) -> None:
        self.names = module_of(text)
        self.world = self.names["WORLD"] = self.names["W"]()
        self.where = where
        self.function, self.count = self.names["make"](self.world)
        if backend is not None:
            self.function = funcaot.compile(self.function, backend=backend)

    def call(self, x: torch.Tensor, *, grad: bool) -> tuple[Any, Exception | None]:
        """The result of a call, or what it raises."""
        torch.manual_seed(3)
        given = (x, self.world) if self.where == "argument" else (x,)
        try:
            with torch.set_grad_enabled(grad):
                return self.function(*given), None
        except Exception as error:  # noqa: BLE001 - eager's may be any
            return None, error

    def change(self, text: str, seed: float) -> str | None:
        """Have something happen outside of the function; the class of what it raises."""
        draws = torch.Generator().manual_seed(int(seed * 1e6))
        known = {"w": self.world, "m": self.names, "rng": random.Random(seed), "g": draws}
        try:
            exec(text, known | {"torch": torch, "functools": functools})
        except Exception as error:  # noqa: BLE001 - a random change may fail
            return type(error).__name__
        return None

    @property
    def state(self) -> tuple[Any, ...]:
        """All that the function can change."""
        names = self.names
        kinds = names["Sub"].kind, names["W"].total
        return self.world, names["G"], names["GT"], names["GD"], *kinds, self.count()


def difference(seed: int, backend: str) -> str | None:
    """The first difference between a compiled life and eager's, with the text; None if none."""
    rng = random.Random(seed)
    text, where = program(rng)
    lives = Life(text, where, None), Life(text, where, backend)
    happened: list[str] = []
    for call in range(rng.randint(4, 7)):
        for change in rng.choices(_texts("changes"), k=rng.choice((0, 0, 1, 1, 2)) if call else 0):
            happened.append(change)
            at = rng.random()
            raised = [life.change(change, at) for life in lives]
            if raised[0] != raised[1]:
                return f"{happened}: {raised}\n{text}"
        happened.append(f"call {call}")
        found = _called(rng, lives)
        if found == "refused":
            return None
        if found:
            return f"{happened}: {found}\n{text}"
    return None


def _called(rng: random.Random, lives: tuple[Life, Life]) -> str | None:
    """What differs in a call, and in a backward of it; whether it is refused."""
    grad = rng.random() < 0.75
    kind = torch.float64 if rng.random() < 0.15 else torch.float32
    needs = rng.random() < 0.7
    xs = [torch.linspace(-1, 1, 3, dtype=kind).requires_grad_(needs) for _ in lives]
    (expected, raised), (got, error) = (
        life.call(x, grad=grad) for life, x in zip(lives, xs, strict=True)
    )
    if isinstance(error, funcaot.errors.FuncaotError):
        return "refused"
    if type(raised) is not type(error) or str(raised) != str(error):
        return f"eager raises {raised!r}, compiled {error!r}"
    results = (expected, got)
    found = _differences(lives, xs, results)
    if found or raised is not None or rng.random() < 0.2:
        return found
    outs = [[*tensors_in(result)] for result in results]
    if not (outs[0] and outs[1]):
        return None
    refusals = [_refusal(each) for each in outs]
    if refusals[0] != refusals[1]:
        return f"eager's backward raises {refusals[0]!r}, the compiled one {refusals[1]!r}"
    return "refused" if refusals[0] else _differences(lives, xs, results)


def _refusal(outs: list[torch.Tensor]) -> str | None:
    """What a backward says of a tensor that was written to after it was saved; None if nothing."""
    try:
        sum(out.sum() for out in outs).backward()
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return None


def _differences(lives: tuple[Life, Life], xs: list[Any], results: tuple[Any, Any]) -> str | None:
    seen = [(out, life.state, x) for out, life, x in zip(results, lives, xs, strict=True)]
    compared = Compared()
    compared.add(*seen, "")
    return "; ".join(compared.differences) or None
