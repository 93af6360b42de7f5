"""A segment without its tape: what calling it needs to know, as data and made again.

``functions`` makes Functions of it. The nodes of a tape are names here. What only the tape knows
(derivatives that weren't saved, the graph for a ``vmap``) is asked of the captured program, which
``functions`` has made when that is needed for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from funcaot.aot.graph import graphs
from funcaot.aot.graph.settings import Settings
from funcaot.aot.saved.codec import Data, scalar_data, scalar_from
from funcaot.aot.saved.errors import NotSavedError
from funcaot.aot.segment.dependence import dependent_on
from funcaot.aot.segment.segment import (
    Form,
    Link,
    Links,
    Operand,
    Place,
    Residual,
    Segment,
    Shown,
)
from funcaot.aot.subclasses.carried import Brought
from funcaot.aot.tape.closed_over import ClosedOver

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment


class Token:
    """What stands for a node of a tape: itself, by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True)
class KnownOutput:
    """What is known of a tape's tensor that an output was.

    Attributes:
        shape: Its sizes.
        dtype: Its element type.
        device: Where it is.
        requires_grad: Whether autograd recorded it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


class _Wrappers:
    """What is known of a tape's wrappers.

    Attributes:
        used: Whether there are any.
    """

    brought = Brought()

    def __init__(self) -> None:
        self.used = False


class LoadedTape:
    """What stands for the tape of a saved program.

    Attributes:
        sizes: The environment of its open sizes, if it has any.
        captured: The captured program's tape, once there is one.
    """

    closed_over = ClosedOver()

    def __init__(self, sizes: SizeEnvironment | None = None) -> None:
        """Nothing is captured yet."""
        self.wrappers = _Wrappers()
        self.sizes = sizes
        self.captured: Any = None

    def forget_values(self) -> None:
        """Let go of values of the call, if there is a tape that keeps some."""
        if self.captured is not None:
            self.captured.forget_values()


_LEAF: Any = Token("leaf")


def segment_data(segment: Segment) -> Data:
    """What calling a segment needs to know of it, without its forms."""
    if segment.tape.closed_over.readers:
        raise NotSavedError("a Function's backward reads tensors that aren't operands")
    if any(graphs.is_opaque(node) for node in segment.tape.graph.nodes):
        raise NotSavedError("it calls a Function that can't be traced")
    return {
        "name": segment.name,
        "kind": segment.kind,
        "order": segment.order,
        "operands": [
            [operand.leaf is not None, operand.by_value, operand.volatile, operand.private]
            for operand in segment.operands
        ],
        "outputs": [tensor.requires_grad for tensor in segment.outputs],
        "made": [
            [
                list(map(scalar_data, made.shape)),
                scalar_data(made.dtype),
                str(made.device),
                made.requires_grad,
            ]
            for made in segment.graph_outputs
        ],
        "dependence": [
            sorted(dependent_on(segment.operands, made)) for made in segment.graph_outputs
        ],
        "shown": [places for _, *places in segment.shown],
        "links": [[list(link) for link in links] for links in segment.links],
        "noted": list(segment.noted),
        "count": len(segment.output_nodes),
        "effects": len(segment.effect_nodes),
        "places": [[place.output, place.operand] for place in segment.places],
        "draws": segment.draws,
        "calls_functions": segment.calls_functions,
        "wrappers": segment.tape.wrappers.used,
    }


def form_data(segment: Segment, form: Form, *, keeping: bool) -> Data:
    """What a form keeps, and which operands its graph takes."""
    return {
        "positions": list(form.positions),
        "residuals": [
            [residual.operand, residual.output, keeping and residual.node in segment.unchecked]
            for residual in form.residuals
        ],
    }


class LoadedSegment(Segment):
    """A segment that was saved; it has no tape.

    Attributes:
        dependence: The operands with gradients that each output depends on.
    """

    def __init__(
        self, data: Data, forms: dict[bool, Data], tape: LoadedTape, settings: Settings
    ) -> None:
        """Make what ``segment_data`` and ``form_data`` described."""
        outputs: Any = tuple(
            KnownOutput((), torch.float32, torch.device("cpu"), graded)
            for graded in data["outputs"]
        )
        made: Any = tuple(
            KnownOutput(
                tuple(map(scalar_from, shape)), scalar_from(dtype), torch.device(device), graded
            )
            for shape, dtype, device, graded in data["made"]
        )
        nodes: Any = tuple(Token(f"output {index}") for index in range(data["count"]))
        tape.wrappers.used |= data["wrappers"]
        self.tape = tape  # pyright: ignore[reportAttributeAccessIssue]
        self.operands = tuple(
            Operand(_token("operand", index), _LEAF if leaf else None, *flags)
            for index, (leaf, *flags) in enumerate(data["operands"])
        )
        self.outputs = outputs
        self.graph_outputs = made
        self.dependence = tuple(map(frozenset, data["dependence"]))
        nothing: Any = None
        self.shown = tuple(Shown(nothing, *places) for places in data["shown"])
        self.links = Links(
            *(
                tuple(Link(output, *map(tuple, others)) for output, *others in links)
                for links in data["links"]
            )
        )
        self.noted = tuple(data["noted"])
        self.output_nodes = nodes
        self.settings = settings
        self.name, self.kind, self.order = data["name"], data["kind"], data["order"]
        self.effect_nodes = tuple(_token("effect", index) for index in range(data["effects"]))
        self.places = tuple(Place(output, operand) for output, operand in data["places"])
        self.draws = data["draws"]
        self.calls_functions = data["calls_functions"]
        loose: set[Any] = set()
        self._forms = {keeping: self._loaded_form(form, loose) for keeping, form in forms.items()}
        self.unchecked = frozenset(loose)

    def _loaded_form(self, data: Data, loose: set[Any]) -> Form:
        residuals: list[Residual] = []
        for index, (operand, output, unchecked) in enumerate(data["residuals"]):
            node = _token("residual", index)
            residuals.append(Residual(node, operand, output))
            if unchecked:
                loose.add(node)
        return loaded_form(data, residuals)


def _token(kind: str, index: int) -> Any:
    return Token(f"{kind} {index}")


class _NoGraph:
    """What stands where a form has its graph: the program of the form makes it when it is asked."""


_NO_GRAPH: Any = _NoGraph()


def loaded_form(data: Data, residuals: Sequence[Residual] = ()) -> Form:
    """A form that was saved; its graph is in its program."""
    return Form(_NO_GRAPH, tuple(data["positions"]), tuple(residuals))


def same_residuals(form: Form, known: Sequence[Residual]) -> bool:
    """Whether a captured form keeps what a saved one kept."""
    return [(r.operand, r.output) for r in form.residuals] == [(r.operand, r.output) for r in known]
