"""What a report says, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

from funcaot.aot.graph.location import Location
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Signature
from funcaot.report.communication import Communication


@dataclass(frozen=True)
class ResidualReport:
    """A value that a forward keeps for its backward.

    Attributes:
        name: The graph's name of it.
        shape: Sizes; expressions where they are open.
        dtype: Element type.
        bytes: Size of its elements, of the call that was captured; 0 if it is an input or an
            output, which exist anyway.
        origin: ``"input"``, ``"output"`` or ``"intermediate"``.
        op: The op that made it, ``"input"`` for an input.
        source: ``file:line`` in the user's code that called the op, None if unknown.
        reason: Why it is kept instead of being computed again.
        consumers: Autograd nodes that ask for it, or for something computed from it.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.compile(lambda x: x.sin(), backend="eager")
        >>> y = f(torch.ones(3, requires_grad=True))
        >>> (residual,) = funcaot.report(f).entries[0].residuals
        >>> residual.origin, residual.shape, residual.bytes
        ('input', (3,), 0)
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    origin: str
    op: str
    source: Location | None
    reason: str
    consumers: tuple[str, ...]

    def __str__(self) -> str:
        """``mm float32[8, 8], 256 bytes, model.py:12: too expensive ..., for MulBackward0``."""
        kind = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        size = f"{self.bytes:,} bytes" if self.origin == "intermediate" else f"an {self.origin}"
        place = "" if self.source is None else f", {self.source}"
        users = f", for {', '.join(self.consumers)}" if self.consumers else ""
        return f"{self.name} {kind}, {size}{place}: {self.reason}{users}"


@dataclass(frozen=True)
class GraphReport:
    """One graph that a program runs.

    Attributes:
        name: ``f``, ``vmap(f)``, ``f_backward`` and so on.
        graph: The graph as captured.
        compiler: What made the executable; None if it hasn't run yet.
        timings: Seconds per stage.
        derived: Graphs derived from this one by vmap.
        opaque: Functions that run on real values between compiled parts, each with the reason.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.compile(lambda x: 2 * x, backend="eager")
        >>> y = f(torch.ones(3))
        >>> (graph,) = funcaot.report(f).entries[0].graphs
        >>> graph.compiler, [node.op for node in graph.graph.graph.nodes]
        ('eager', ['placeholder', 'call_function', 'output'])
    """

    name: str
    graph: fx.GraphModule
    compiler: str | None
    timings: dict[str, float]
    derived: tuple[GraphReport, ...] = ()
    opaque: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """For notebooks."""
        from funcaot.report import html

        return html.of_graph(self)


@dataclass(frozen=True)
class DerivativeReport:
    """A backward or pushforward, traced when it was first invoked.

    Attributes:
        kind: ``"backward"``, ``"pushforward"`` of a forward that had run, or ``"primal and
            tangent"`` for both in one program.
        tangents: Spec of each tangent that it was traced for, None where there was none.
        create_graph: Whether it can itself be differentiated.
        graphs: Its graphs; empty if every gradient is None.
        timings: Seconds per stage.
        derivatives: Its own backwards and pushforwards.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.compile(lambda x: x.sin().sum(), backend="eager")
        >>> f(torch.ones(3, requires_grad=True)).backward()
        >>> (backward,) = funcaot.report(f).entries[0].backwards
        >>> backward.kind, backward.create_graph, len(backward.graphs)
        ('backward', False, 1)
    """

    kind: str
    tangents: tuple[TensorSpec | None, ...]
    create_graph: bool
    graphs: tuple[GraphReport, ...]
    timings: dict[str, float]
    derivatives: tuple[DerivativeReport, ...] = ()

    @property
    def graph(self) -> fx.GraphModule | None:
        """The graph that ran, if there is one."""
        return self.graphs[0].graph if self.graphs else None

    def _repr_html_(self) -> str:
        """For notebooks."""
        from funcaot.report import html

        return html.of_derivative(self)


@dataclass(frozen=True)
class EntryReport:
    """One captured signature.

    Attributes:
        signature: What calls it serves; sizes that it leaves open are symbols.
        forward_graph: The functional graph of the forward.
        graphs: The forward's graphs, with what was derived from them.
        residuals: What the forward keeps; empty if it keeps nothing or nothing needs grad.
        mutations: Inputs that are overwritten, by position.
        in_place: Those of them that the graph itself writes to, and not the epilogue, in calls
            where nobody can tell the difference.
        aliases: For each output, where it comes from.
        backwards: Backwards traced so far.
        pushforwards: Forward-mode derivatives traced so far.
        timings: Seconds per stage.
        guards: What must be true of the open sizes, besides that they are at least 2.
        closed: Why sizes couldn't be left open, if that was tried.
        reason: Why no earlier entry served the call that this was made for.
        source: The file that it is from, if another process compiled it; then its graphs aren't
            here.
        checks: What a call is compared by besides its signature: what it reads of its surroundings.
        communication: What its graphs send to other ranks.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.compile(lambda x: x.exp(), backend="eager")
        >>> y = f(torch.ones(3, requires_grad=True))
        >>> (entry,) = funcaot.report(f).entries
        >>> str(entry.signature), len(entry.residuals), entry.residual_bytes
        ('float32[3] requires_grad', 1, 0)
    """

    signature: Signature
    forward_graph: fx.GraphModule | None
    graphs: tuple[GraphReport, ...]
    residuals: tuple[ResidualReport, ...]
    mutations: tuple[int, ...]
    aliases: tuple[str, ...]
    backwards: tuple[DerivativeReport, ...]
    pushforwards: tuple[DerivativeReport, ...]
    timings: dict[str, float]
    guards: tuple[str, ...] = ()
    closed: str | None = None
    reason: str = ""
    checks: tuple[str, ...] = ()
    in_place: tuple[int, ...] = ()
    source: str = ""
    communication: tuple[Communication, ...] = ()

    @property
    def residual_bytes(self) -> int:
        """Bytes kept beyond inputs and outputs."""
        return sum(residual.bytes for residual in self.residuals)

    def __repr__(self) -> str:
        """One line."""
        kept = f"{len(self.graphs)} graph(s), {self.residual_bytes:,} bytes kept"
        return f"<funcaot entry ({self.signature}): {kept}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from funcaot.report import html

        return html.of_entry(self)


@dataclass(frozen=True)
class Report:
    """What was compiled for one function.

    Attributes:
        name: The function.
        backend: Name of the compiler.
        graphs_compiled: Graphs handed to the compiler so far.
        graphs_shared: Backward graphs that run an executable made for an equal one.
        backward_traces: Backwards traced so far, of any order.
        cache_hits: Calls served by an existing entry.
        cache_misses: Calls that were captured.
        entries: One per signature.
        transformed: Transforms straight over the function that were compiled with it whole.
        refused: Why calls can't be captured that run as they are (``fullgraph=False``).

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.compile(lambda x: x.sin(), backend="eager")
        >>> y, z = f(torch.ones(3)), f(torch.ones(3))
        >>> report = funcaot.report(f)
        >>> report.cache_misses, report.cache_hits, len(report.entries)
        (1, 1, 1)
    """

    name: str
    backend: str
    graphs_compiled: int
    graphs_shared: int
    backward_traces: int
    cache_hits: int
    cache_misses: int
    entries: tuple[EntryReport, ...]
    transformed: tuple[Report, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def communication(self) -> tuple[Communication, ...]:
        """What graphs that have run send to other ranks, one record for each with collectives."""
        return tuple(found for entry in self.entries for found in entry.communication)

    def __str__(self) -> str:
        """A readable summary."""
        from funcaot.report.text import render

        return render(self)

    def __repr__(self) -> str:
        """One line; ``print`` shows the summary."""
        made = f"{len(self.entries)} signature(s), {self.graphs_compiled} graph(s) compiled"
        return f"<funcaot report of {self.name}: {made}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from funcaot.report import html

        return html.of_report(self)

    def draw(self, path: str | Path, *, what: str = "graphs", entry: int = -1) -> Path:
        """Draw a picture of what was compiled.

        Args:
            path: Where to: ``.svg``, ``.png`` or ``.pdf``; for the graphs also ``.dot``.
            what: ``"graphs"``: the operations of the forward and of its derivatives, with what is
                kept between them, coloured by bytes. ``"memory"``: bytes of results while these
                operations run one by one; a compiler that fuses them needs less. ``"timeline"``:
                the stages of compiling, of all entries.
            entry: Which of ``entries``; the newest by default.

        Returns:
            The path.

        Raises:
            FuncaotError: If nothing was compiled, or neither Graphviz nor matplotlib is installed
                (the extra ``funcaot[draw]``).

        Example:
            >>> import funcaot, tempfile, torch
            >>> f = funcaot.compile(lambda x: (x.sin() ** 2).sum(), backend="eager")
            >>> f(torch.ones(3, requires_grad=True)).backward()
            >>> path = tempfile.mkdtemp() + "/f.dot"
            >>> "sin" in funcaot.report(f).draw(path).read_text()
            True
        """
        from funcaot.report.draw import draw

        return draw(self, path, what, entry)
