"""The tape: one symbolic trace that continues, forward nodes first, derivatives on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch import tracing
from funcaot.aot.spec import TensorSpec
from funcaot.interception import intercepting


class Tape:
    """A graph under construction, with the modes that record into it.

    Autograd really records on the tape's tensors, so a derivative is taken by asking
    autograd for it with the same modes entered again: its nodes are appended to the graph,
    and rules of custom Functions hold at every order.

    Attributes:
        graph: The graph; placeholders may come late, since tangents arrive on demand.
        root: Module that owns the graph's constants.
    """

    def __init__(self) -> None:
        """Make an empty tape."""
        self._fake_mode = tracing.FakeTensorMode(allow_non_fake_inputs=False)
        self._tracer = tracing.new_tracer()
        self._proxy_mode = tracing.ProxyTorchDispatchMode(self._tracer, "fake")
        self._functional_mode = tracing.FunctionalTensorMode()

    @property
    def graph(self) -> fx.Graph:
        """The graph that the tape records into."""
        return self._tracer.graph

    @property
    def root(self) -> torch.nn.Module:
        """The module that owns the graph's constants."""
        return self._tracer.root

    @contextlib.contextmanager
    def recording(self, *, grad_mode: bool = True) -> Iterator[None]:
        """Enter the modes: what runs inside is recorded, below every transform of the caller.

        Args:
            grad_mode: Whether autograd records too.
        """
        with (
            _outside_of_transforms(),
            torch.set_grad_enabled(grad_mode),
            intercepting(),
            tracing.disable_autocast_cache(),
            self._fake_mode,
            self._proxy_mode,
            self._functional_mode,
        ):
            yield

    def placeholder(
        self, name: str, spec: TensorSpec, example: torch.Tensor | None = None, *, leaf: bool = True
    ) -> torch.Tensor:
        """Add an input to the tape.

        Args:
            name: Name of the graph's placeholder.
            spec: Metadata that the input has.
            example: A tensor of that spec; needed for layouts other than strided.
            leaf: Whether the tensor is a leaf. One that isn't can be mutated in place even
                though it requires grad, as in eager.

        Returns:
            The tape's tensor, which requires grad if the spec says so.
        """
        with _outside_of_transforms(), torch.no_grad():
            value = self._fake_value(spec, example)
            proxy = self._tracer.create_proxy("placeholder", name, (), {})
            tracing.track(value, proxy, self._tracer)
            proxy.node.meta["val"] = value
            with self._functional_mode:
                wrapped = tracing.to_functional(value)
            return wrapped.requires_grad_(spec.requires_grad)

    def _fake_value(self, spec: TensorSpec, example: torch.Tensor | None) -> torch.Tensor:
        if spec.layout is not torch.strided:
            if example is None:
                raise ValueError(f"a placeholder of layout {spec.layout} needs an example")
            return self._fake_mode.from_tensor(example.detach())
        with self._fake_mode:
            value = torch.empty_strided(
                spec.shape, spec.stride, dtype=spec.dtype, device=spec.device
            )
            if spec.flags[0]:
                value = value.conj()
            if spec.flags[1]:
                value = value._neg_view()
        return value

    def non_leaf(self, leaf: torch.Tensor) -> torch.Tensor:
        """The same value as a non-leaf of autograd, without a node in the graph."""
        with _outside_of_transforms(), torch.enable_grad(), self._functional_mode:
            return _Enter.apply(leaf)  # type: ignore[no-any-return]

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node that computes this tensor's present value, or None if it isn't on the tape."""
        return tracing.node_of(tensor, self._tracer)

    def run(
        self, function: Callable[..., Any], *args: Any, grad_mode: bool = True, **kwargs: Any
    ) -> Any:
        """Record a function's run on the tape's tensors."""
        with self.recording(grad_mode=grad_mode):
            return function(*args, **kwargs)

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
        with self.recording(grad_mode=create_graph):
            return torch.autograd.grad(
                list(outputs),
                list(inputs),
                list(tangents),
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,
            )


class _Enter(torch.autograd.Function):
    """Identity: a new wrapper of the same traced value, so that no node is recorded."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return tracing.to_functional(tracing.functional_inner(leaf))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


@contextlib.contextmanager
def _outside_of_transforms() -> Iterator[None]:
    """Leave every transform and mode of the caller: the tape belongs to no level."""
    with (
        tracing.temporarily_clear_interpreter_stack(),
        tracing.disable_current_modes(),
        tracing.set_forward_ad_enabled(True),
    ):
        yield
