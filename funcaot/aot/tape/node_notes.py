"""What is known of a node only while it is recorded: where, and in which modes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from funcaot._torch.autograd.autograd import is_forward_grad_enabled
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.aot.graph.location import calling_line
from funcaot.aot.graph.policy import makes_alike
from funcaot.aot.tape.again import is_computed_again
from funcaot.base.scopes import holding

__all__ = ["NodeNotes"]

_DETACHING = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class NodeNotes:
    """Describes each node in its ``meta``.

    Forward mode has to know, which sees through ``no_grad`` but not through ``detach``.

    Attributes:
        region: The checkpointed region that is being recorded, if any.
    """

    def __init__(self, functional_mode: tracing.TapeFunctionalMode) -> None:
        """Describe nothing yet.

        Args:
            functional_mode: Knows which op is running.
        """
        self.region: int | None = None
        self._mode = functional_mode
        self._in_function = False
        self._in_rule = False
        self._grad_mode_of_call: bool | None = None
        self._forward_mode_of_call: bool | None = None
        self._called: type | None = None
        # Views made in `no_grad`, by what makes them.
        self._hidden_views: set[tuple[Any, str]] = set()

    def note(self, node: fx.Node) -> None:
        """Describe a node that was just made."""
        node.meta["source"] = calling_line()
        node.meta["region"] = self.region
        node.meta["again"] = is_computed_again()
        node.meta["grad_mode"] = self._grad_mode(node)
        # Autograd makes the zeros of a Function's missing tangents with forward mode off.
        node.meta["still"] = self._is_still() and not makes_alike(node)
        node.meta["view_of_forward"] = self._is_view_of_forward(node)
        detaching = self._mode.detaching and node.target in _DETACHING
        # Functionalization makes a detached tensor anew where its memory was written to.
        detaching |= node.target is torch.ops.aten.detach.default and not tracing.in_backward()
        node.meta["detached"] = detaching and self._detaches()
        node.meta["called"] = self._called
        node.meta["write"] = self._mode.writing
        node.meta["seen_detached"] = self._mode.detached_writes.writing

    @contextlib.contextmanager
    def running_function(self) -> Iterator[None]:
        """While the user's function runs: what is recorded in ``no_grad`` is the user's."""
        with holding(self, _in_function=True):
            yield

    @contextlib.contextmanager
    def running_rule(self) -> Iterator[bool]:
        """While a Function's own backward runs; whether the captured function asked for it."""
        with holding(self, _in_rule=True):
            yield self._in_function

    @contextlib.contextmanager
    def calling(self, function: type | None = None) -> Iterator[None]:
        """While a Function is called, which switches both modes off for its forward.

        Args:
            function: The Function, if what its forward does is recorded.
        """
        with holding(
            self,
            _called=function or self._called,
            _grad_mode_of_call=torch.is_grad_enabled(),
            _forward_mode_of_call=is_forward_grad_enabled(),
        ):
            yield

    def _grad_mode(self, node: fx.Node) -> bool:
        """The grad mode of a node; of a view that in which it was made.

        Functionalization makes it anew for another op where its memory was written to.
        """
        calling = self._grad_mode_of_call
        grad_mode = torch.is_grad_enabled() if calling is None else calling
        if not graphs.is_view(node) or not self._in_function or tracing.in_backward():
            return grad_mode
        made = (node.target, str(node.args[1:]))
        if node.target is not self._mode.running:
            return grad_mode and made not in self._hidden_views
        if not grad_mode:
            self._hidden_views.add(made)
        return grad_mode

    def _is_still(self) -> bool:
        """Whether the user's function switched forward mode off."""
        if not self._in_function or tracing.in_backward():
            return False
        calling = self._forward_mode_of_call
        return not (is_forward_grad_enabled() if calling is None else calling)

    def _is_view_of_forward(self, node: fx.Node) -> bool:
        """Whether a Function's forward or setup_context made a view, to keep it.

        Reverse mode takes it for a constant, and forward mode for what it is a view of.
        """
        calling = self._grad_mode_of_call is not None and not torch.is_grad_enabled()
        return calling and graphs.is_view(node)

    def _detaches(self) -> str:
        """Whether a recorded ``detach`` stops tangents: ``yes``, ``maybe``, or empty for no.

        Autograd detaches what it saved when a backward reads it, which keeps its tangent; while a
        Function's own backward runs, that can't be told from what the user wrote.
        """
        if not tracing.in_backward():
            return "yes"
        return "maybe" if self._in_rule else ""
