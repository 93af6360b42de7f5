"""Random Functions with state, and lives of them: ``test_lives`` compares compiled ones with eager.

Two Functions are made of lines of ``forwards.txt``, ``contexts.txt`` and ``backwards.txt``, and a
function that calls them of ``statements.txt``. They read and change what is in ``world.txt``.
Between calls, and between a call and its backward, some of ``changes.txt`` happen.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import funcaot
from tests.aot.state.lives.compared import Compared
from tests.aot.state.lives.modules import module_of, tensors_in

HERE = Path(__file__).parent
RESULTS = ("x", "(x, w.n)", "{'x': x, 'b': w.buf}", "(x.sum(), w.last)", "[x, x * 2]")
STARTS = {"argument": [], "closure": ["w = w0"], "global": ["w = WORLD"]}
BACKWARD = """
    @staticmethod
    {decorator}def backward(ctx, g):
        w = ctx.W; saved = ctx.saved_tensors
        if g is None: return None, None, None
        {body}
        return g, None, None"""
SPLIT = """class {name}(Function):
    generate_vmap_rule = {batched}
    @staticmethod
    def forward(a, v, w):
        y = a * 1.0
        {forward}
        return y
    @staticmethod
    def setup_context(ctx, inputs, output):
        a, v, w = inputs; y = output; ctx.W = w
        {context}"""
WHOLE = """class {name}(Function):
    generate_vmap_rule = {batched}
    @staticmethod
    def forward(ctx, a, v, w):
        y = a * 1.0; ctx.W = w
        {forward}
        {context}
        return y"""
MAKE = """
def make(w0):
    def f({parameters}):
        {body}
        return {result}
    return f
"""
# A gradient that a backward on real values gives or stores is contiguous, and in own memory.
KNOWN = ("(0,)", "other memory")
REFUSED, ENDED = "refused", "ended"


@functools.cache
def lines(name: str) -> tuple[str, ...]:
    """The lines of a file beside this one."""
    return tuple((HERE / f"{name}.txt").read_text().splitlines())


def _some(rng: random.Random, name: str, least: int, most: int) -> list[str]:
    return rng.sample(lines(name), rng.randint(least, most))


def _joined(found: list[str]) -> str:
    return "\n        ".join(found)


def _function(rng: random.Random, name: str) -> str:
    """The text of a Function."""
    contexts = _some(rng, "contexts", 0, 4)
    saving = [line for line in contexts if "save_for" in line]
    contexts = [line for line in contexts if line not in saving[1:]] or ["pass"]
    split = rng.random() < 0.45
    if not split and rng.random() < 0.15:
        contexts.append("ctx.mark_non_differentiable(y)")
    text = (SPLIT if split else WHOLE).format(
        name=name,
        batched=rng.random() < 0.4,
        forward=_joined(_some(rng, "forwards", 1, 5)),
        context=_joined(contexts),
    )
    decorator = "@once_differentiable\n    " if rng.random() < 0.15 else ""
    return text + BACKWARD.format(decorator=decorator, body=_joined(_some(rng, "backwards", 1, 5)))


def program(rng: random.Random) -> tuple[str, str]:
    """The text of a module with two Functions and a function, and how that reaches the world."""
    body = [rng.choice(lines("statements")) for _ in range(rng.randint(2, 6))]
    if not any("F0" in line or "F1" in line for line in body):
        body.insert(0, "x = F0.apply(x, w.f, w)")
    where = rng.choice(tuple(STARTS))
    made = MAKE.format(
        parameters="x, w" if where == "argument" else "x",
        body=_joined([*STARTS[where], *body]),
        result=rng.choice(RESULTS),
    )
    world = (HERE / "world.txt").read_text()
    return "\n".join([world, _function(rng, "F0"), _function(rng, "F1"), made]), where


class Life:
    """One world with its Functions, whose function is compiled or not."""

    def __init__(self, text: str, where: str, backend: str | None) -> None:
        self.names = module_of(text)
        self.world = self.names["WORLD"] = self.names["W"]()
        self.where = where
        self.function = self.names["make"](self.world)
        if backend is not None:
            self.function = funcaot.compile(self.function, backend=backend)
        self.x = torch.zeros(3)
        self.result: Any = None

    def call(self, *, grad: bool, needs: bool) -> Exception | None:
        """Call it; what it raises."""
        torch.manual_seed(3)
        self.x = torch.linspace(-1, 1, 3).requires_grad_(needs)
        given = (self.x, self.world) if self.where == "argument" else (self.x,)
        try:
            with torch.set_grad_enabled(grad):
                self.result = self.function(*given)
        except Exception as error:  # noqa: BLE001 - eager's may be any
            return error
        return None

    def change(self, text: str) -> str | None:
        """Have something happen outside of the function; the class of what it raises."""
        try:
            exec(text, {"w": self.world, "m": self.names, "torch": torch})
        except Exception as error:  # noqa: BLE001 - a random change may fail
            return type(error).__name__
        return None

    def derive(self, ask: Ask) -> tuple[Any, Exception | None]:
        """Gradients of the last result, or what asking for them raises."""
        torch.manual_seed(4)
        outputs = [*tensors_in(self.result)]
        leaves = [each for each in (self.x, self.world.par) if each.requires_grad]
        try:
            return ask(outputs, leaves), None
        except Exception as error:  # noqa: BLE001 - eager's may be any
            return None, error

    @property
    def state(self) -> tuple[Any, ...]:
        """All that the function and its Functions can change."""
        names, kinds = self.names, self.names["Cfg"]
        known = (names[name] for name in ("K", "FLAG", "GT", "GD", "LOG"))
        return self.world, *known, kinds.scale, kinds.calls, kinds.mode


Ask = Callable[[list[torch.Tensor], list[torch.Tensor]], Any]


def _filling(gradient: Callable[[torch.Tensor], torch.Tensor]) -> Ask:
    def ask(outputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
        torch.autograd.backward(outputs, list(map(gradient, outputs)), retain_graph=True)

    return ask


def _first(outputs: Any, leaves: Any, *, create_graph: bool = False) -> Any:
    if not leaves:
        return ()
    total = sum(output.sum() for output in outputs)
    return torch.autograd.grad(
        total, leaves, create_graph=create_graph, retain_graph=True, allow_unused=True
    )


def _second(outputs: Any, leaves: Any) -> Any:
    first = _first(outputs, leaves, create_graph=True)
    total = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
    second = ()
    if isinstance(total, torch.Tensor):
        second = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
    return tuple(each if each is None else each.detach() for each in (*first, *second))


ASKS: dict[str, Ask] = {
    "sum": _filling(torch.ones_like),
    "halves": _filling(lambda output: torch.full_like(output, 0.5)),
    "expanded": _filling(lambda output: torch.tensor(0.3).expand(output.shape)),
    "squares": _filling(lambda output: 2 * output.detach()),
    "grad": _first,
    "second": _second,
}


@dataclass
class Pair:
    """An eager life and a compiled one, to which the same happens.

    Attributes:
        happened: What has happened so far.
    """

    rng: random.Random
    lives: tuple[Life, Life]
    happened: list[str] = field(default_factory=list)

    def live(self) -> str | None:
        """Some calls, changes and backwards; the first difference."""
        for call in range(self.rng.randint(3, 6)):
            if call and (found := self._changed(self.rng.choice((0, 0, 1, 1, 2)))):
                return found
            found = self._called()
            if found == ENDED:
                continue
            if found or (self.rng.random() < 0.75 and (found := self._derived())):
                return None if found in (REFUSED, ENDED) else found
        return None

    def _changed(self, count: int) -> str | None:
        for change in self.rng.choices(lines("changes"), k=count):
            self.happened.append(change)
            raised = [life.change(change) for life in self.lives]
            if raised[0] != raised[1]:
                return f"{raised}"
        return None

    def _called(self) -> str | None:
        grad, needs = self.rng.random() < 0.85, self.rng.random() < 0.75
        self.happened.append(f"call, {grad=}, {needs=}")
        expected, error = (life.call(grad=grad, needs=needs) for life in self.lives)
        if expected is not None and "must override the setup_context" in str(expected):
            return REFUSED
        return self._difference(expected, error, [life.result for life in self.lives])

    def _derived(self) -> str | None:
        counts = [len([*tensors_in(life.result)]) for life in self.lives]
        if counts[0] != counts[1]:
            return f"{counts} results with a history"
        for _ in range(self.rng.choice((1, 1, 1, 2)) if counts[0] else 0):
            if self.rng.random() < 0.4 and (found := self._changed(1)):
                return found
            name = self.rng.choice(tuple(ASKS))
            self.happened.append(f"derivative, {name}")
            (expected, raised), (got, error) = (life.derive(ASKS[name]) for life in self.lives)
            if found := self._difference(raised, error, [expected, got]):
                return found
        return None

    def _difference(
        self, raised: Exception | None, error: Exception | None, results: list[Any]
    ) -> str | None:
        if isinstance(error, (funcaot.errors.FuncaotError, funcaot.errors.CaptureWarning)):
            return REFUSED
        if type(raised) is not type(error) or str(raised)[:50] != str(error)[:50]:
            return f"eager raises {raised!r}, compiled {error!r}"
        compared = Compared()
        states = [(life.state, life.x) for life in self.lives]
        try:
            compared.add((results[0], states[0]), (results[1], states[1]), "")
        except NotImplementedError:  # a tensor of a transform that has ended, in eager, too
            return REFUSED
        found = [each for each in compared.differences if not any(k in each for k in KNOWN)]
        return "; ".join(found) or (ENDED if raised is not None else None)


def difference(seed: int, backend: str) -> str | None:
    """The first difference between a compiled life and eager's, with the text; None if none."""
    rng = random.Random(seed)
    text, where = program(rng)
    pair = Pair(rng, (Life(text, where, None), Life(text, where, backend)))
    found = pair.live()
    return found and f"{pair.happened}: {found}\n{text}"
