"""The open sizes of one graph: further inputs of it, read off the tensors that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from funcaot._torch.tensors.sizes import shapes
from funcaot.aot.graph import graphs
from funcaot.aot.graph.spec_sizes import Shown
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.signature.sizes import Conditions, SizeError, concrete, shown_by
from funcaot.aot.tape.tape import Tape

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment
    from funcaot.aot.lowering.lower import Lowered


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """Where a graph's operands show the sizes that it takes besides.

    Attributes:
        environment: Of the sizes.
        symbols: Those that the graph takes, in order.
        sources: For each, the operand that shows it, and where.
    """

    environment: SizeEnvironment
    symbols: tuple[Any, ...]
    sources: tuple[Shown, ...]

    @staticmethod
    def of(module: fx.GraphModule) -> OpenSizes | None:
        """The open sizes of a graph, None if it has none.

        Raises:
            SizeError: If no operand shows one of them.
        """
        taken = [node for node in module.graph.nodes if graphs.is_size_input(node)]
        if not taken:
            return None
        environment: SizeEnvironment = graphs.value_of(taken[0]).node.shape_env
        shown = shown_by(graphs.inputs(module), environment)
        symbols = tuple(shapes.expression_of(graphs.value_of(node)) for node in taken)
        missing = [str(symbol) for symbol in symbols if symbol not in shown]
        if missing:
            raise SizeError(
                f"No operand of a graph has {', '.join(missing)} as one of its sizes.",
                remedy="compile with dynamic=False.",
            )
        return OpenSizes(environment, symbols, tuple(shown[symbol] for symbol in symbols))

    def read(
        self, operands: Sequence[torch.Tensor], in_dims: Sequence[int | None] | None = None
    ) -> tuple[int, ...]:
        """The sizes of a call.

        Args:
            operands: The graph's tensors.
            in_dims: Their batch dimensions, which aren't the graph's.
        """
        if in_dims is None:
            return tuple([source.read(operands) for source in self.sources])
        own = [
            [size for dim, size in enumerate(operand.shape) if dim != batch]
            for operand, batch in zip(operands, in_dims, strict=True)
        ]
        return tuple(own[index][dim] for index, dim, _ in self.sources)

    def conditions(self) -> Conditions:
        """An empty list of what is assumed about these sizes."""
        return Conditions(self.environment, self.symbols)

    def closed(self, module: fx.GraphModule, sizes: Sequence[int]) -> fx.GraphModule:
        """The same graph for these sizes alone."""
        tape = Tape()
        values = dict(zip(self.symbols, sizes, strict=True))
        inputs = [
            tape.placeholder(node.name, concrete(spec_of(graphs.value_of(node)), values))
            for node in graphs.inputs(module)
        ]
        available = [tape.node_of(tensor) for tensor in inputs]
        with tape.recording(grad_mode=False):
            outputs = module(*inputs, *sizes)
            wanted = [tape.node_of(tensor) for tensor in outputs]
        return tape.extract(available, wanted)

    def taking_sizes(self, lowered: Lowered) -> Lowered:
        """The executable of a closed graph, for a caller that hands it the sizes too."""
        taken = len(self.symbols)

        def without(run: Callable[[list[Any]], Sequence[Any]]) -> Callable[..., Sequence[Any]]:
            return lambda operands: run(operands[: len(operands) - taken])

        return replace(lowered, run=without(lowered.run), trusting=without(lowered.trusting))
