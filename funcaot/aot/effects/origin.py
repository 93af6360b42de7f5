"""How ``epilogue`` makes a tensor that isn't a result, of inputs, results and others like it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from funcaot.aot.tape.memory import views


@dataclass(frozen=True, eq=False)
class Origin:
    """How the epilogue makes a tensor out of others; one object, one tensor.

    Attributes:
        source: The input that it starts from, or None.
        result: The result that it starts from, or None.
        parent: Another tensor that the epilogue makes, if it starts from neither.
        kind: ``detach`` or ``data`` if it shares memory with its start, but not autograd's graph.
        view: The chain of views from there.
        graft: Result whose place in autograd's graph it takes.
        leaf: Whether it is made a leaf that requires grad.
        parameter: Whether it is made a ``torch.nn.Parameter``.
        part: Attributes that lead from the input, a wrapper, to a tensor inside; it starts there.
        beside: More tensors that the view is given.
    """

    source: int | None = None
    result: int | None = None
    parent: Origin | None = None
    kind: str | None = None
    view: views.View | None = None
    graft: int | None = None
    leaf: bool = False
    parameter: bool = False
    part: tuple[str, ...] = ()
    beside: tuple[Origin, ...] = ()

    @property
    def results(self) -> Iterator[int]:
        """Positions of the results that it is made of."""
        for each in (self.parent, *self.beside):
            if each is not None:
                yield from each.results
        yield from (each for each in (self.result, self.graft) if each is not None)

    def with_view(self, start: fx.Node, end: fx.Node, *, several: bool) -> Origin | None:
        """A view of it as autograd sees it too; None if it has to be made of something else.

        Args:
            start: The tape's node of it.
            end: That of the view.
            several: See ``View``.
        """
        if not self.only_views or self.view is None or not self.view.recorded:
            return None
        steps = views.chain(start, end)
        steps = tuple(step for step in steps or () if not step.is_detach)
        return Origin(parent=self, view=views.View(steps, True, several=several)) if steps else None

    @property
    def only_views(self) -> bool:
        """Whether it is a chain of views of an input or result, some of which have names."""
        others = self.kind or self.leaf or self.parameter or self.part or self.beside
        if others or self.graft is not None or self.view is None:
            return False
        return self.parent is None or self.parent.only_views

    def __str__(self) -> str:
        """``input 1.detach().select(0, 1)`` style."""
        if self.parent is not None:
            text = f"({self.parent})"
        else:
            text = f"result {self.result}" if self.source is None else f"input {self.source}"
            text = ".".join((text, *self.part))
        if self.kind:
            text += f".{self.kind}"
        if self.view is not None:
            text += f".{self.view}"
        if self.graft is not None:
            text += f" with the gradient of result {self.graft}"
        return text + (" as a leaf" * self.leaf) + (" as a parameter" * self.parameter)
