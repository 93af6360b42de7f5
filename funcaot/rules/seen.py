"""What forward of a Function sees of autograd, told to it where its operands are others.

Eager's forward is given the caller's tensors. A capture gives it fake ones and a transform the ones
below its levels, which don't say whether the call is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import map_tensors, pytree
from funcaot._torch.tracing.read_as import ReadAs
from funcaot.classes.containers import ChangesGivenError, Contents, holds_container
from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import display_name, origin_of

__all__ = ["Seen", "read_for", "reading_class", "unread", "what_is_seen"]

Answer = tuple[bool, bool]


@dataclass(frozen=True)
class Seen:
    """What the tensors of a call say; no tensor and no container, so every level passes it on.

    Attributes:
        needs: ``ctx.needs_input_grad``: one boolean per operand.
        tensors: For each tensor, those inside of containers among them, whether it requires grad
            and whether it is a leaf.
        name: The Function, for messages.
    """

    needs: tuple[bool, ...]
    tensors: tuple[Answer, ...]
    name: str = field(default="", compare=False)

    def run(
        self, forward: Callable[..., Any], *operands: Any, watched: bool = False
    ) -> tuple[Any, bool]:
        """What ``forward`` returns on operands that are to say this, and whether it asked.

        Unless it is watched, that isn't known where they say this by themselves.
        """
        found = _tensors(operands)
        if len({id(tensor) for tensor in found}) < len(found):
            operands = self._apart(operands)
            found = _tensors(operands)
        given = None
        if current_captor() is not None and holds_container(operands):
            given = Contents(operands)
        if not watched and all(
            _says(t) == answer for t, answer in zip(found, self.tensors, strict=True)
        ):
            output, was_read = forward(*operands), False
        else:
            with ReadAs(found, self.tensors) as mode:
                output, was_read = forward(*operands), mode.was_read
        if given is not None and given.changed():
            given.put_back()
            raise ChangesGivenError.of(self.name)
        return output, was_read

    def needing(self, operands: tuple[Any, ...]) -> set[int]:
        """Which tensors of a call require grad, by ``id``."""
        pairs = zip(_tensors(operands), self.tensors, strict=True)
        return {id(tensor) for tensor, (requires_grad, _) in pairs if requires_grad}

    def _apart(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Operands of which no tensor stands for two that say different things."""
        answers, known = iter(self.tensors), {}

        def apart(tensor: torch.Tensor) -> torch.Tensor:
            answer = next(answers)
            same = known.setdefault(id(tensor), (answer, tensor))[0] == answer
            return tensor if same else tensor.view_as(tensor)

        return map_tensors(apart, operands)


def what_is_seen(
    function: type, operands: tuple[Any, ...], say: Callable[[torch.Tensor], Answer]
) -> Seen:
    """What operands of a Function say, tensor by tensor."""
    needs = tuple(isinstance(value, torch.Tensor) and say(value)[0] for value in operands)
    return Seen(needs, tuple(map(say, _tensors(operands))), display_name(function))


def _says(tensor: torch.Tensor) -> Answer:
    return tensor.requires_grad, tensor.is_leaf


def _tensors(operands: tuple[Any, ...]) -> list[torch.Tensor]:
    if not any(isinstance(value, (list, tuple, dict)) for value in operands):
        return [value for value in operands if isinstance(value, torch.Tensor)]
    return [x for x in pytree.tree_leaves(operands) if isinstance(x, torch.Tensor)]


def reading_class(function: type, operands: tuple[Any, ...]) -> type:
    """The Function whose forward reads off its operands what these say, whatever it is given."""
    seen = what_is_seen(function, operands, _says)
    asked: list[bool] = []

    def forward(*given: Any) -> Any:
        forward = function.forward  # type: ignore[attr-defined]
        output, was_read = seen.run(forward, *given, watched=not asked)
        if was_read:
            asked.append(True)
        return output

    members = {
        "forward": staticmethod(forward),
        "funcaot_origin": origin_of(function),
        "funcaot_reads": asked,
        "__module__": function.__module__,
    }
    return new_function_class(function.__name__, function, members)


def unread(function: type) -> type:
    """The Function itself, if its forward read nothing of this when it ran."""
    return function if function.__dict__.get("funcaot_reads") else read_for(function)


def read_for(function: type) -> type:
    """The Function whose forward a class of ``reading_class`` runs; any other is its own."""
    return function.__mro__[1] if "funcaot_reads" in function.__dict__ else function
