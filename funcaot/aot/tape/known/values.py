"""What a tape knows of the present call's values; captures ask it, who read numbers or run code."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from funcaot._torch.tensors.seeding import drawing_nothing
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.aot.tape.collectives import refuse_value_of_ranks
from funcaot.aot.tape.known.kept import Draws, Kept
from funcaot.aot.tape.wrappers import Wrappers, is_wrapper
from funcaot.classes.opaque import Opaque
from funcaot.errors import UnsupportedError

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

__all__ = ["Values"]


class Values:
    """The values of a tape's nodes in the call that is captured, until its first run is over.

    The graph so far runs once, from the call's inputs and what opaque Functions returned. Where
    sizes are open, it runs with those of the call. What is computed on the way is kept.

    Attributes:
        drew: Whether what was asked for last depends on random numbers, which the call draws anew.
    """

    def __init__(
        self,
        root: torch.nn.Module,
        sizes: SizeEnvironment | None,
        wrappers: Wrappers,
    ) -> None:
        """Nothing is known yet.

        Args:
            root: The module that owns the graph's constants.
            sizes: The tape's open sizes, if it has any.
            wrappers: Its tensors that wrap others.
        """
        self.drew = False
        self._root = root
        self._sizes = sizes
        self._wrappers = wrappers
        self._known: dict[fx.Node, Any] = {}
        self._kept = Kept()
        self._draws = Draws()
        self._opaque: list[Opaque] = []
        self._only_examples = False
        self._examples: set[fx.Node] = set()

    def provide(self, node: fx.Node, value: torch.Tensor) -> None:
        """Make the value of a node in the present call known."""
        example = tracing.one_example(value)
        made_up = self._sizes is not None and isinstance(example, tracing.FakeTensor)
        if node.users:
            self._kept.clear()
        if example is not None and not made_up:
            wraps = is_wrapper(example)
            self._known[node] = self._wrappers.again(example) if wraps else example.detach()
            if tracing.is_batched(value):
                self._only_examples = True
                self._examples.add(node)

    @contextlib.contextmanager
    def made_up(self) -> Iterator[None]:
        """While some values are provided that no call has: what follows is computed again."""
        before = self._only_examples
        self._only_examples = True
        try:
            yield
        finally:
            self._only_examples = before

    def real(self, nodes: Sequence[fx.Node | None]) -> list[torch.Tensor] | None:
        """The values of nodes, or None if one isn't known."""
        wanted = [node for node in nodes if node is not None]
        return self.of(wanted) if len(wanted) == len(nodes) else None

    def exact(self, nodes: Sequence[fx.Node | None]) -> list[torch.Tensor] | None:
        """The same, with the random numbers that the call is going to draw."""
        wanted = [node for node in nodes if node is not None]
        if not wanted:
            return None if nodes else []
        draws = self._draws.among(wanted[0].graph)
        found = self._run([*wanted, *draws], keep=True)
        return None if found is None or len(wanted) < len(nodes) else found[: len(wanted)]

    def are_examples(self, nodes: Sequence[fx.Node | None]) -> bool:
        """Whether the values of nodes are those of one example of a batch."""
        if not self._examples:
            return False
        wanted = [node for node in nodes if node is not None]
        return bool(self._examples & (graphs.closure(wanted, ()) | {*wanted}))

    def of(self, wanted: Sequence[fx.Node]) -> list[torch.Tensor] | None:
        """The values of nodes, or None if they aren't known.

        The caller is outside of every transform.
        """
        return self._run(wanted, keep=False)

    def _run(self, wanted: Sequence[fx.Node], *, keep: bool) -> list[torch.Tensor] | None:
        """Run the nodes that some values need.

        Args:
            wanted: The nodes whose values are asked for.
            keep: Whether what is computed on the way has the random numbers of the call.

        Returns:
            Their values, or None if they aren't known.
        """
        if not wanted:
            return []
        needed = graphs.closure(wanted, self._known, self._kept.values)
        if any(node.op == "placeholder" and not graphs.is_size(node) for node in needed):
            return None
        if any(map(graphs.is_collective, needed)):
            raise refuse_value_of_ranks()
        if any(map(graphs.acts_outside, needed)):
            raise UnsupportedError(
                "A value is read, while a function is captured, of what an operator makes that "
                "acts outside of tensors: it would act twice.",
                remedy="return the value and read it outside; torch.where chooses by one inside.",
            )
        self.drew = any(graphs.is_random(node) for node in needed)
        read = {source for node in needed for source in node.all_input_nodes} | {*wanted}
        known = ChainMap(self._known, self._kept.values)
        given = sorted(node for node in read if node in known)
        kept = self._kept.chosen(needed) if keep else []
        distinct = list(dict.fromkeys([*wanted, *kept]))
        module = graphs.extract(self._root, given, distinct)
        with torch.no_grad(), drawing_nothing(vars(self._root).values()):
            values = module(*map(known.get, given), *self._present_sizes(module))
        found = dict(zip(distinct, values, strict=True))
        self._kept.keep({node: found[node] for node in kept})
        return [found[node] for node in wanted]

    def _present_sizes(self, module: fx.GraphModule) -> list[int]:
        """The sizes that a graph takes, in the call that is traced."""
        if self._sizes is None:
            return []
        taken = [graphs.value_of(node) for node in module.graph.nodes if graphs.is_size_input(node)]
        return [int(self._sizes.at_present(shapes.expression_of(size))) for size in taken]

    def remember(self, nodes: Sequence[fx.Node | None], opaque: Opaque) -> None:
        """Note what an opaque Function returned, by the nodes of its outputs.

        It runs again when the call runs if it depends on random numbers, which are drawn then, or
        if the values were made up or those of one example of a batch.
        """
        if opaque.pending is None:
            return
        self._opaque.append(opaque)
        (values,) = opaque.pending
        for node, value in zip(nodes, (values,) if opaque.single else values, strict=True):
            if node is not None:
                self._known[node] = value
        if self.drew or self._only_examples:
            opaque.pending = None

    def forget(self) -> None:
        """Let go of the values: the first run is over."""
        self._kept.clear()
        if self._known:
            self._known.clear()
            for opaque in self._opaque:
                opaque.pending = None
            self._opaque.clear()
            self._only_examples = False
            self._examples.clear()
