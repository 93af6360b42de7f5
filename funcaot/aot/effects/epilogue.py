"""The epilogue: replays a function's effects after its graph has run.

It runs outside of the graph's autograd node and calls ordinary torch ops on the caller's tensors,
so every level in progress (autograd, ``grad``, ``vmap``, ``jvp``) sees what it would have seen of
the function itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.levels import functorch
from funcaot._torch.tracing.own_classes import in_class
from funcaot.aot.effects.attached import Copies
from funcaot.aot.effects.effects import Effects, Mutation, Output, Watched
from funcaot.aot.effects.origin import Origin
from funcaot.aot.effects.pieces import Pieces
from funcaot.aot.subclasses.structure import inside

# See ``finish``.
Before: TypeAlias = Callable[[Container[int], Callable[[int], Any]], None]


def prepare(effects: Effects, tensors: Sequence[torch.Tensor]) -> None:
    """Replay what has to happen before the graph runs."""
    maker = _Maker(tensors, ())
    for mutation in effects.mutations:
        for action in mutation.actions:
            if action.before_graph:
                action.replay(tensors[mutation.index], maker)


def undo(effects: Effects, tensors: Sequence[torch.Tensor]) -> None:
    """Take back what ``prepare`` did, for a call that leaves before its graph has run."""
    for mutation in reversed(effects.mutations):
        for action in reversed(mutation.actions):
            if action.before_graph:
                action.undo(tensors[mutation.index])


def finish(
    effects: Effects,
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor | None],
    before: Before | None = None,
) -> list[Any]:
    """Change the inputs and make the outputs.

    Args:
        effects: The plan.
        tensors: The call's inputs, then what regions add.
        results: What the graph computed.
        before: Called before an input is changed and before outputs are made, with the inputs that
            are still to be changed, and with what makes an output. It may replace results.

    Returns:
        The flat outputs.
    """
    maker = _Maker(tensors, results, effects.outputs)
    if effects.mutations or effects.flats:
        _mutate(effects, tensors, maker, before)
    if before is not None:
        before((), maker.numbered)
    outputs = [maker.numbered(index) for index in range(len(effects.outputs))]
    for index, attach in effects.attached:
        attach.replay(outputs[index], maker)
    return outputs


class _Maker:
    """Makes each tensor that the plan names once."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor | None],
        outputs: Sequence[Output] = (),
    ) -> None:
        self.outputs = outputs
        self._numbered: dict[int, Any] = {}
        self.tensors = tensors
        self.results = results
        self._made: dict[int, torch.Tensor] = {}
        self._of_classes: dict[int, torch.Tensor] = {}
        self._views = Pieces()
        self.copied = Copies().of

    def result(self, position: int) -> torch.Tensor:
        value = self.results[position]
        if value is None:
            raise RuntimeError("a result that was not computed")
        return value

    def numbered(self, index: int) -> Any:
        """An output of the function."""
        if index not in self._numbered:
            self._numbered[index] = self.output(self.outputs[index])
        return self._numbered[index]

    def output(self, output: Output) -> Any:
        if output.of_class is None:
            return self._output(output)
        made = self._of_classes.get(id(output))
        if made is None:
            made = self._of_classes[id(output)] = _of_class(output, self._output(output))
        return made

    def _output(self, output: Output) -> Any:
        if output.origin is not None:
            return self.origin(output.origin)
        if output.source is not None:
            base = self.tensors[output.source]
        elif output.result is not None:
            base = self.result(output.result)
        else:
            return output.value
        return base if output.view is None else self._views(output.view, base)

    def origin(self, origin: Origin) -> torch.Tensor:
        made = self._made.get(id(origin))
        if made is None:
            made = self._made[id(origin)] = self._origin(origin)
        return made

    def _origin(self, origin: Origin) -> torch.Tensor:
        if origin.parent is not None:
            tensor = self.origin(origin.parent)
        elif origin.source is not None:
            tensor = inside(self.tensors[origin.source], origin.part)
        else:
            tensor = inside(self.result(origin.result or 0), origin.part)
        if origin.view is not None and not origin.kind:
            tensor = self._viewed(origin, tensor)
        elif origin.view is not None:
            with torch.no_grad():
                tensor = origin.view(tensor)
        if origin.kind == "detach":
            tensor = tensor.detach()
        elif origin.kind == "data":
            tensor = tensor.data
        if origin.graft is not None:
            version = tensor._version
            tensor.copy_(self.result(origin.graft))
            _set_version(tensor, version)
        if origin.leaf and not _is_leaf_already(origin, tensor):
            is_view = origin.view is not None and not origin.kind
            tensor = tensor if is_view else tensor.detach()
            tensor.requires_grad = True  # Transforms refuse the method, though not factories.
        return torch.nn.Parameter(tensor, origin.leaf) if origin.parameter else tensor

    def _viewed(self, origin: Origin, tensor: torch.Tensor) -> torch.Tensor:
        view: Any = origin.view
        if origin.beside:
            return view(tensor, *map(self.origin, origin.beside))
        return self._views(view, tensor)


def _of_class(output: Output, tensor: torch.Tensor) -> torch.Tensor:
    """An output as a tensor of the user's class that it is of."""
    kind, origin = output.of_class or torch.Tensor, output.origin
    # A view of a leaf would be none.
    alone = origin is not None and (origin.leaf or origin.kind == "detach")
    made = in_class(tensor, kind, leaf=origin.leaf if origin is not None and alone else None)
    if output.parameter:
        made._is_param = True  # type: ignore[attr-defined]
    return made


def _is_leaf_already(origin: Origin, tensor: torch.Tensor) -> bool:
    """Whether a view made in ``no_grad`` is what it is in eager, where its base requires grad."""
    if origin.view is None or origin.view.recorded or origin.kind:
        return False
    return tensor.requires_grad or functorch.transforms_active()


def _mutate(
    effects: Effects,
    tensors: Sequence[torch.Tensor],
    maker: _Maker,
    before: Before | None,
) -> None:
    for slot, position in effects.flats:
        with torch.no_grad():
            tensors[slot].copy_(maker.result(position))
    if _copied_together(effects, tensors, maker):
        return
    waiting = [mutation.index for mutation in effects.mutations]
    for mutation in effects.mutations:
        if before is not None:
            before(waiting, maker.numbered)
        _replay(mutation, tensors[mutation.index], maker)
        waiting.remove(mutation.index)
    if effects.flats and torch.is_grad_enabled():
        for tensor in tensors:
            _look_at(tensor)


def _replay(mutation: Mutation, target: torch.Tensor, maker: _Maker) -> None:
    """Replay what happens to one input after the graph has run, and count its versions."""
    # Counters may be shared, so each input adds its part.
    version = None
    if not target.is_inference():
        inner = sum([action.counted_with(target) for action in mutation.actions])
        version = target._version + (mutation.versions or 0) + inner
    for action in mutation.actions:
        if not action.before_graph:
            action.replay(target, maker)
    if version is not None:
        _set_version(target, version)


def _look_at(tensor: torch.Tensor) -> None:
    """Let a view know that its base requires grad now; the function wrote through the base."""
    with contextlib.suppress(RuntimeError):  # of a view that autograd forbids to look at
        _ = tensor.grad_fn


def _copied_together(effects: Effects, tensors: Sequence[torch.Tensor], maker: _Maker) -> bool:
    """Give all inputs their new data by one op, if that is all there is to do.

    Buffers of modules are the usual case.
    """
    mutations = effects.mutations
    copies = [mutation.copied for mutation in mutations]
    values = [copy.value for copy in copies if copy is not None]
    if len(mutations) < 2 or effects.flats or len(values) < len(mutations):
        return False
    targets = [tensors[mutation.index] for mutation in mutations]
    if functorch.dispatch_mode_count():  # Below a mode that op counts no version.
        return False
    if functorch.transforms_active() or any(
        target.is_inference()
        or target.is_neg()  # Lists of tensors with such a bit can't be written to.
        or target.is_conj()
        or functorch.is_functorch_wrapped_tensor(target)
        for target in targets
    ):
        return False
    with torch.no_grad():
        autograd.copy_all(targets, [maker.result(value) for value in values])
    for mutation, target in zip(mutations, targets, strict=True):
        if mutation.versions != 1:
            # The op counted one; counters may be shared, so each input adds its part.
            autograd.set_version(target, target._version + (mutation.versions or 0) - 1)
    return True


def attach(
    watched: Sequence[Watched],
    reachable: Sequence[int],
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor | None],
) -> None:
    """Give the graph's autograd node the inputs that its backward needs besides what it saved.

    Those whose new value it keeps, to check their versions, with results that hold what it keeps;
    and those that it might write to.
    """
    node = next((made.grad_fn for made in results if made is not None and made.grad_fn), None)
    if node is None:
        return
    # Not the tensors themselves: one that the epilogue wrote to holds on to the node.
    node.held = {index: tensors[index].detach() for index in reachable}  # type: ignore[attr-defined]
    targets = [
        (tensors[item.input] if item.input is not None else results[item.result or 0], item.root)
        for item in watched
    ]
    node.watched = tuple(  # type: ignore[attr-defined]
        (target.detach(), target._version, root) for target, root in targets if target is not None
    )


def check_watched(
    watched: Sequence[tuple[torch.Tensor, int, fx.Node]], reads: frozenset[fx.Node]
) -> None:
    """Raise eager's error if an input was written to since the forward and its value is read."""
    for tensor, version, root in watched:
        if tensor._version != version and root in reads:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
                f"{tensor._version}; expected version {version} instead."
            )


def _set_version(tensor: torch.Tensor, version: int) -> None:
    """Count as many in-place changes as the function made; levels count their own.

    A view remembers at which count it last took its history from its base. It looks again at the
    new one: later, a change of the base could bring the count back to what it remembers.
    """
    if functorch.is_functorch_wrapped_tensor(tensor) or tensor._version == version:
        return
    autograd.set_version(tensor, version)
    if tensor._is_view():
        _look_at(tensor)
