"""The tape: one symbolic trace that continues, forward nodes first, derivatives on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.checkpoint import sequence_number
from funcaot._torch.autograd.detached import DetachedWrites
from funcaot._torch.levels import inference
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.random.made_generators import made_by, made_really
from funcaot._torch.tensors.seeding import drawing_nothing
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.functional_values import is_up_to_date
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.subclasses import classes
from funcaot.aot.tape.around import outside_of_transforms, watching, with_open_sizes
from funcaot.aot.tape.closed_over import ClosedOver, Replacing
from funcaot.aot.tape.collectives import record
from funcaot.aot.tape.empty_losses import OF_EMPTY
from funcaot.aot.tape.entering import Attach, Enter
from funcaot.aot.tape.generators import Generators
from funcaot.aot.tape.known import premises
from funcaot.aot.tape.known.values import Values
from funcaot.aot.tape.node_notes import NodeNotes
from funcaot.aot.tape.open_pads import OPEN_PADS
from funcaot.aot.tape.random_order import in_memory_order
from funcaot.aot.tape.severed import severs
from funcaot.aot.tape.wrappers import Wrappers, is_wrapper
from funcaot.base.scopes import holding, unwatched
from funcaot.classes.opaque import Opaque, capturing
from funcaot.derivatives.kernels import with_derivatives
from funcaot.functions.interception import intercepting
from funcaot.operator.operator import custom_function_call

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment


class Tape:
    """A graph under construction, with the modes that record into it.

    Autograd really records on the tape's tensors, so a derivative is taken by asking
    autograd for it with the same modes entered again: its nodes are appended to the graph,
    and rules of custom Functions hold at every order.

    Attributes:
        graph: The graph; placeholders may come late, since tangents arrive on demand.
        tracer: Makes the nodes.
        root: Module that owns the graph's constants.
        regions: For each ``torch.utils.checkpoint`` so far, the first sequence number of
            autograd inside and the first one after it.
        spoiled: Why no more derivatives can be traced, if a backward changed what it must not.
        sizes: The sizes that it leaves open, None if there are none.
        asked_by: What asks for the derivative that is traced now (a `Captor` of `classes.opaque`).
        transposes: Whether it is a backward whose transpose is going to be forward mode.
        saved_by_writes: For autograd's node of an in-place op on a view, the nodes of what the
            op saved.
        wrappers: Its tensors that wrap others.
        called_plainly: Whether a Function was given what holds tensors, so that it isn't a node.
        kept: What Functions keep for their backwards of containers that they were given.
        closed_over: What such a Function's backward may reach besides what it saved.
        outside_memory: Its constants that lie in memory that isn't torch's.
        values: The values of nodes in the present call, as far as they are known.
        generators: The random generators that are made while it records now.
    """

    def __init__(self, sizes: SizeEnvironment | None = None) -> None:
        """Make an empty tape, with open sizes if it has any."""
        self.tracer = tracing.new_tracer()
        self.regions: list[tuple[int, int]] = []
        self.sizes = sizes
        self._fake_mode = tracing.fake_mode(sizes)
        self._proxy_mode = tracing.ProxyTorchDispatchMode(self.tracer, "fake")
        self._functional_mode = tracing.TapeFunctionalMode()
        self._notes = NodeNotes(self._functional_mode)
        self.tracer.note = self._notes.note
        self._functional_mode.answer = premises.answer
        self.outside_memory = self._functional_mode.outside
        self._functional_mode.record_collective = record
        self.spoiled: str | None = None
        self.asked_by, self.transposes, self.called_plainly = "", False, False
        self.kept: list[tuple[str, Any]] = []
        self.closed_over = ClosedOver()
        self.saved_by_writes: dict[Any, tuple[fx.Node, ...]] = {}
        self.wrappers = Wrappers(self.tracer, self._fake_value, sizes)
        self.values = Values(self.root, sizes, self.wrappers)
        self.generators = Generators(self._functional_mode)
        if self.sizes is not None:
            self._add_sizes(self.sizes)

    def _add_sizes(self, sizes: SizeEnvironment) -> None:
        """Make each open size an input of the graph."""
        from funcaot._torch.tensors.sizes.size_environment import SizeNodes

        with outside_of_transforms():
            tracker = SizeNodes(self.tracer, sizes)
        self.tracer.symnode_tracker = tracker  # type: ignore[assignment]
        self.root.size_nodes = tuple(tracker.inputs.values())  # type: ignore[assignment]

    def size_node(self, size: Any) -> fx.Node:
        """The node of a number made of the tape's open sizes."""
        return self.tracer.symnode_tracker.get(size).force().node  # type: ignore

    @property
    def graph(self) -> fx.Graph:
        """The graph that the tape records into."""
        return self.tracer.graph

    @property
    def root(self) -> torch.nn.Module:
        """The module that owns the graph's constants."""
        return self.tracer.root

    @contextlib.contextmanager
    def recording(self, *, grad_mode: bool = True, autocast: bool = False) -> Iterator[None]:
        """Enter the modes: what runs inside is recorded, below every transform of the caller.

        Args:
            grad_mode: Whether autograd records too.
            autocast: Whether what runs inside may autocast, as the caller does. What is recorded
                once more has been cast, where the function said so.
        """
        hidden = inference.inference_mode_around_levels()
        generators = Generators(self._functional_mode)
        with (
            holding(self, generators=generators),
            StateKept(self._fake_mode, self._proxy_mode, self._functional_mode),
            contextlib.nullcontext() if autocast else guards.autocast_as(()),
            outside_of_transforms(),
            inference.outside_inference_mode() if hidden else contextlib.nullcontext(),
            torch.set_grad_enabled(grad_mode),
            intercepting(),
            with_derivatives() if grad_mode else contextlib.nullcontext(),
            capturing(self),
            watching(self._checkpointed),
            tracing.disable_autocast_cache(),
            self._fake_mode,
            self._proxy_mode,
            self.decomposing({**in_memory_order(self._running), **OF_EMPTY, **OPEN_PADS}),
            self._functional_mode,
            made_by(generators),
            contextlib.nullcontext() if self.sizes is None else with_open_sizes(),
        ):
            yield

    def decomposing(
        self, table: dict[Any, Callable[..., Any]]
    ) -> contextlib.AbstractContextManager[Any]:
        """While recording, other ops are recorded for those of a table."""
        order = in_memory_order(self._running)
        return tracing.decompose(self.generators.decompositions(order, table))

    def stands_for(self, output: Any, operand: torch.Tensor) -> bool:
        """Whether a Function's output is an operand that it returned as it is."""
        return self._functional_mode.function_views.stands_for(output, operand)

    def _running(self) -> Any:
        """The op that is being recorded, as it was called."""
        return self._functional_mode.running

    @property
    def detached_writes(self) -> DetachedWrites:
        """What is detached and what is written to."""
        return self._functional_mode.detached_writes

    def expect_tangents(self) -> None:
        """The trace is for a call whose tensors carry tangents, which pass through ``no_grad``."""
        self._functional_mode.function_views.pushed = True

    @property
    def is_at_level(self) -> bool:
        """Whether the trace is for a call inside a transform or forward mode."""
        return self._functional_mode.function_views.pushed

    def forget_inputs(self, outputs: Sequence[Any]) -> None:
        """Check what a capture returns, and look no longer at what Functions share."""
        self.wrappers.shared.clear()
        self.wrappers.entering = False
        views = self._functional_mode.function_views
        views.check(outputs)
        views.clear()

    @contextlib.contextmanager
    def running_function(self, note_set: Callable[[torch.Tensor, Any], None]) -> Iterator[None]:
        """While the user's function runs.

        Args:
            note_set: Is told of each ``set_``, with its target and its source.
        """
        told = holding(self._functional_mode, note_set=note_set)
        with told, self._notes.running_function():
            yield

    def running_rule(self) -> contextlib.AbstractContextManager[bool]:
        """While a Function's own backward runs; whether the captured function asked for it."""
        return self._notes.running_rule()

    @contextlib.contextmanager
    def _checkpointed(self) -> Iterator[None]:
        """Mark what is recorded inside as a region whose values aren't kept."""
        if self._notes.region is not None:
            # Inside another one, which computes everything again anyway.
            yield
            return
        where = "in a checkpoint, which runs again without what they say"
        with classes.refused(where), self._region():
            yield

    @contextlib.contextmanager
    def _region(self) -> Iterator[None]:
        self._notes.region = len(self.regions)
        start = sequence_number()
        self.regions.append((start, start))
        try:
            yield
        finally:
            self.regions[self._notes.region] = (start, sequence_number())
            self._notes.region = None

    def placeholder(
        self,
        name: str,
        spec: TensorSpec,
        example: torch.Tensor | None = None,
        like: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add an input to the tape.

        Args:
            name: Name of the graph's placeholder.
            spec: Metadata that the input has.
            example: A tensor of that spec; needed for layouts other than strided.
            like: What it is a gradient of, whose ragged size is its own.

        Returns:
            The tape's tensor, which requires grad if the spec says so.
        """
        kept = StateKept(self._fake_mode, self._proxy_mode, self._functional_mode)
        with kept, outside_of_transforms(), torch.no_grad():
            proxy = self.tracer.create_proxy("placeholder", name, (), {})
            with inference.as_made(example), self._functional_mode:
                made = self.wrappers.opened(proxy, spec, example, like)
            if example is not None:
                self.provide(proxy.node, example)
            made.requires_grad_(spec.requires_grad)
            self.wrappers.know(made, proxy.node)
            return made

    def stand_for(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Let a tensor whose value was recorded a second time stand for the first node."""
        again = self.node_of(tensor)
        if again is None or again is node:
            return
        again.replace_all_uses_with(node)
        inner = tracing.functional_inner(tensor)
        with tracing.temporarily_clear_interpreter_stack():  # no level in the node's value
            tracing.track(inner, fx.Proxy(node, self.tracer), self.tracer)

    def _fake_value(self, spec: TensorSpec, example: torch.Tensor | None) -> torch.Tensor:
        if spec.layout is not torch.strided:
            if example is None:
                raise ValueError(f"a placeholder of layout {spec.layout} needs an example")
            with tracing.disable_current_modes():
                return self._fake_mode.from_tensor(example.detach(), static_shapes=True)
        shape, stride = spec.shape, spec.stride
        if self.sizes is not None:
            shape, stride = tuple(map(self.sizes.number, shape)), map(self.sizes.number, stride)
        with tracing.disable_current_modes(), self._fake_mode:
            value = torch.empty_strided(shape, tuple(stride), dtype=spec.dtype, device=spec.device)
            if spec.flags[0]:
                value = value.conj()
            if spec.flags[1]:
                value = value._neg_view()
        return value

    def calling(self, function: type | None = None) -> contextlib.AbstractContextManager[None]:
        """While a Function is called, which switches grad mode off for its forward."""
        return self._notes.calling(function)

    def severs(self, result: torch.Tensor, cotangents: Sequence[torch.Tensor]) -> bool:
        """Whether a gradient was computed from cotangents where autograd doesn't see it."""
        return severs(self, result, cotangents)

    # What opaque Functions ask a capture in progress for (see ``funcaot.classes.opaque``).

    def real_values(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The values of traced tensors in the present call, or None if they aren't known."""
        self.refuse_open_sizes()
        nodes = list(map(self.node_of, tensors))
        with outside_of_transforms():
            return self.values.real(nodes)

    def exact_values(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The same, with the random numbers that the call is going to draw; of any sizes."""
        nodes = list(map(self.node_of, tensors))
        with outside_of_transforms():
            return self.values.exact(nodes)

    def refuse_open_sizes(self) -> None:
        """Refuse what runs on real values and looks as it does for the sizes of one call.

        Raises:
            SizeError: If sizes are open.
        """
        if self.sizes is not None:
            raise shapes.SizeError(
                "What runs on real values can't be traced with open sizes.",
                remedy="compile with dynamic=False.",
            )

    def are_examples(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the values of traced tensors are those of one example of a batch."""
        return self.values.are_examples(list(map(self.node_of, tensors)))

    def stand_ins(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of ones that look like traced ones."""
        with outside_of_transforms(), torch.no_grad():
            return [
                torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
                ).fill_(1)
                for tensor in tensors
            ]

    def run(self, function: type, operands: tuple[Any, ...], noting: Any) -> Any:
        """Run a Function's forward on real operands."""
        with outside_of_transforms(), torch.no_grad(), unwatched(), made_really(), noting:
            state = torch.get_rng_state()
            output = function.forward(*operands)  # type: ignore[attr-defined]
            if not torch.equal(state, torch.get_rng_state()):
                torch.set_rng_state(state)
                self.values.drew = True
        return output

    def outside(self, body: Callable[[], Any], given: Iterable[object] = ()) -> Any:
        """Run code on real tensors, outside of every mode and level; it draws nothing."""
        with outside_of_transforms(), drawing_nothing(given), unwatched(), made_really():
            return body()

    def call(self, function: type, *operands: Any) -> Any:
        """Call a Function through the operator."""
        return custom_function_call(function, *operands)

    def values_of(self, wanted: Sequence[fx.Node]) -> list[torch.Tensor] | None:
        """The values of nodes in the present call, or None if they aren't known."""
        with outside_of_transforms():
            return self.values.of(wanted)

    def remember(self, outputs: Any, opaque: Opaque) -> None:
        """Note what an opaque Function returned for its traced outputs."""
        flat = (outputs,) if opaque.single else outputs
        nodes = [self.node_of(out) if isinstance(out, torch.Tensor) else None for out in flat]
        self.values.remember(nodes, opaque)

    def provide(self, node: fx.Node, value: torch.Tensor) -> None:
        """Make the value of a node in the present call known to what reads values."""
        self.values.provide(node, value)

    def forget_values(self) -> None:
        """Let go of the call's real values: its first run is over."""
        self.values.forget()

    def non_leaf(self, leaf: torch.Tensor) -> torch.Tensor:
        """The same value as a non-leaf of autograd, without a node in the graph."""
        as_made = inference.as_made(leaf)
        with outside_of_transforms(), torch.enable_grad(), as_made, self._functional_mode:
            # Not through the operator, which may be installed for every Function.
            return autograd.native_apply(Enter)(leaf, self.wrappers.again)  # type: ignore[no-any-return]

    def attach(self, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Make a tensor of the tape a non-leaf whose gradient goes to a leaf, without a node."""
        with outside_of_transforms(), inference.as_made(leaf), torch.enable_grad():
            return autograd.native_apply(Attach)(leaf, tensor)  # type: ignore[no-any-return]

    def constant(self, node: fx.Node) -> torch.Tensor:
        """A new tensor, while recording, for a node's value, which nothing differentiates."""
        wrapper = self.wrappers.constant(node, self.constant)
        if wrapper is not None:
            return wrapper
        value = self._fake_value(spec_of(node.meta["val"]).without_grad(), None)
        tracing.track(value, fx.Proxy(node, self.tracer), self.tracer)
        return tracing.to_functional(value)

    def carrier(self, symbols: Sequence[Any]) -> fx.Node:
        """The node of a tensor without elements that has these open sizes as its first ones."""
        with self.recording(grad_mode=False):
            numbers = [self.sizes.number(symbol) for symbol in symbols] if self.sizes else []
            made = torch.empty_strided((*numbers, 0), (*[0 for _ in numbers], 1))
            node = self.node_of(made)
        if node is None:
            raise RuntimeError("sizes that aren't on the tape")
        return node

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node that computes this tensor's present value, or None if it isn't on the tape.

        While the tape records, a view of something that was mutated is made anew, and a node for a
        wrapper, if there is none yet. At other times this only looks.

        Raises:
            RuntimeError: The tape doesn't record, and would have to (see `nodes_of`).
        """
        if not tracing.is_capturing() and not is_up_to_date(tensor):
            raise RuntimeError("a view that is made anew is asked for when the tape doesn't record")
        if is_wrapper(tensor):
            return self.wrappers.node_of(tensor)
        return tracing.node_of(tensor, self.tracer)

    def nodes_of(self, tensors: Sequence[torch.Tensor]) -> list[fx.Node | None]:
        """The nodes of what a trace has brought out, which are made where there are none yet."""
        with self.recording(grad_mode=False):
            return list(map(self.node_of, tensors))

    def extract(
        self, available: Sequence[fx.Node | None], wanted: Sequence[fx.Node | None]
    ) -> fx.GraphModule:
        """Everything recorded, as a graph from its inputs to some nodes."""
        return graphs.extract(
            self.root,
            [node for node in available if node is not None],
            [node for node in wanted if node is not None],
            keep_alive=[node for node in self.graph.nodes if graphs.has_effect(node)],
        )

    def gradients(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
        *,
        create_graph: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        """Continue the tape by a backward: autograd runs on it, its nodes are appended.

        Args:
            outputs: Tensors of the tape that require grad.
            inputs: Leaves of the tape.
            tangents: One per output, of the output's shape.
            create_graph: Whether the new nodes can be differentiated again.

        Returns:
            One gradient per input, None where autograd gives None.
        """
        if self.closed_over:
            with self.recording(grad_mode=create_graph, autocast=True), Replacing(self.closed_over):
                return autograd.engine_gradients(
                    outputs, inputs, tangents, create_graph=create_graph
                )
        with self.recording(grad_mode=create_graph, autocast=True):
            given = list(outputs), list(inputs), list(tangents)
            return torch.autograd.grad(
                *given, retain_graph=True, create_graph=create_graph, allow_unused=True
            )
