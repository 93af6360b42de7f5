"""How a result is put together from what the compiled graph returns, as an artifact records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_unflatten
from funcaot._torch.tensors.sizes import shapes
from funcaot.aot.effects.effects import Output
from funcaot.aot.effects.origin import Origin
from funcaot.aot.segment.forward import Forward
from funcaot.aot.tape.memory.views import StridedStep, View
from funcaot.errors import UnsupportedError
from funcaot.exported import trees
from funcaot.exported.signature import STRIDED, Made, Tree
from funcaot.exported.sizes.open_dim import OpenDim


class ResultPlan:
    """Collects the tensors of a result; a tensor that is returned twice is one.

    Attributes:
        made: The tensors.
    """

    def __init__(
        self,
        forward: Forward,
        slots: Sequence[tuple[str, int]],
        baked: Mapping[int, int],
        dims: Mapping[Any, OpenDim],
        name: str,
    ) -> None:
        """Nothing is collected yet.

        Args:
            forward: The captured call.
            slots: What a caller brings for each slot: ``("argument", i)`` or ``("parameter", i)``.
            baked: For each slot that is a constant, the output of the graph that is a copy of it.
            dims: The dim of each symbol.
            name: The function, for messages.
        """
        self.made: list[Made] = []
        self._forward, self._slots, self._baked = forward, slots, baked
        self._dims, self._name = dims, name
        self._known: dict[Any, int] = {}

    def tree(self) -> Tree:
        """The structure of the result; fills ``made``."""
        captured, effects = self._forward.capture, self._forward.effects
        positions = range(captured.tree.num_leaves)
        structure = tree_unflatten(list(map(_Position, positions)), captured.tree)

        def leaf(found: Any, path: str) -> dict[str, Any]:
            if trees.is_value(found):  # A constant in a structure with open sizes.
                return self._value(found, path)
            if not isinstance(found, _Position):
                raise UnsupportedError(
                    f"{self._name} returns a {type(found).__name__} at {path or 'the top'}, which "
                    "an artifact can't make.",
                    remedy="return tuples, named tuples, lists and dictionaries of tensors.",
                )
            return self._leaf(effects.outputs[found.index], path)

        return trees.described(structure, leaf, "", f"The result of {self._name}")

    def _leaf(self, output: Output, path: str) -> dict[str, Any]:
        if output.origin is not None:
            return {"kind": "tensor", "index": self._origin(output.origin)}
        if output.result is not None:
            start = self._result(output.result)
        elif output.source is not None:
            start = self._source(output.source)
        elif isinstance(output.value, torch.Tensor):
            raise UnsupportedError(
                f"{self._name} returns a tensor at {path or 'the top'} that isn't its graph's.",
                remedy="compute it from the arguments.",
            )
        else:
            return self._value(output.value, path)
        return {"kind": "tensor", "index": self._add(start, output.view, None)}

    def _value(self, found: Any, path: str) -> dict[str, Any]:
        number = shapes.expression_of(found)
        if shapes.is_expression(number):
            return {"kind": "size", "size": {"size": self._expression(number)}}
        if type(found) is torch.Size:
            items = [self._value(size, f"{path}[{at}]") for at, size in enumerate(found)]
            return {"kind": "shape", "items": items}
        if found is None:
            return {"kind": "none"}
        return trees.value(number, path, f"The result of {self._name}")

    def _origin(self, origin: Origin) -> int:
        """The tensor that an origin makes; one object, one tensor."""
        if origin in self._known:
            return self._known[origin]
        if origin.parent is not None:
            start = ("made", self._origin(origin.parent))
        elif origin.source is not None:
            start = self._source(origin.source)
        else:
            start = self._result(origin.result or 0)
        self._known[origin] = self._add(start, origin.view, origin)
        return self._known[origin]

    def _add(self, start: tuple[str, int], view: View | None, key: Any) -> int:
        """One more tensor; the same one if it is a start as it is."""
        plain = view is None and key is None
        if plain and start in self._known:
            return self._known[start]
        steps = () if view is None else tuple(map(self._step, view.steps))
        if not steps and key is not None:
            # Another object in the same memory, as ``detach`` makes it.
            steps = (
                {"op": "alias", "overload": "default", "args": [], "kwargs": {}, "item": None},
            )
        self.made.append(Made(start, steps))
        if plain:
            self._known[start] = len(self.made) - 1
        return len(self.made) - 1

    def _result(self, position: int) -> tuple[str, int]:
        place = self._forward.segment.places[position]
        if place.output is not None:
            return ("output", place.output)
        return self._source(place.operand or 0)

    def _source(self, slot: int) -> tuple[str, int]:
        return ("output", self._baked[slot]) if slot in self._baked else self._slots[slot]

    def _step(self, step: Any) -> dict[str, Any]:
        if isinstance(step, StridedStep):
            arguments: Any = [step.shape, step.stride, step.offset]
            name, overload, keywords, item = STRIDED, "", {}, None
        else:
            name, overload = step.target._opname, step.target._overloadname
            arguments, keywords, item = step.arguments, dict(step.keywords), step.item
        return {
            "op": name,
            "overload": overload,
            "args": [self._argument(argument) for argument in arguments],
            "kwargs": {key: self._argument(value) for key, value in keywords.items()},
            "item": item,
        }

    def _argument(self, found: Any) -> Any:
        if isinstance(found, list | tuple):
            return [self._argument(item) for item in found]
        number = shapes.expression_of(found)
        if shapes.is_expression(number):
            return {"size": self._expression(number)}
        if number is None or type(number) in (int, bool, float):
            return number
        if isinstance(number, torch.dtype):
            return {"dtype": str(number).removeprefix("torch.")}
        raise UnsupportedError(
            f"{self._name} returns a view that an artifact can't make: an argument of it is "
            f"{found!r}.",
            remedy="return a clone of it.",
        )

    def _expression(self, found: Any) -> Any:
        """An expression of symbols as JSON, see ``expressions``."""
        if isinstance(found, int) or found.is_Integer:
            return int(found)
        if found in self._dims:
            return self._dims[found].name
        operation = _OPERATIONS.get(type(found).__name__)
        if operation is None:
            raise UnsupportedError(
                f"{self._name} returns a size, or a view with a size, that an artifact can't "
                f"compute: {found}.",
                remedy="return the tensor as it is, and compute the size from its shape.",
            )
        return operation(self, found)

    def joined(self, sign: str, found: Any) -> Any:
        """A sum or a product as JSON."""
        made = self._expression(found.args[0])
        for part in found.args[1:]:
            made = [sign, made, self._expression(part)]
        return made

    def power(self, found: Any) -> Any:
        """A power by a number as a product."""
        base, exponent = found.args
        if not (exponent.is_Integer and exponent > 0):
            return _OPERATIONS["unknown"](self, found)
        import sympy

        return self.joined("*", sympy.Tuple(*[base] * int(exponent)))


class _Position(int):
    """Stands for an output in a structure; a number, since a ``torch.Size`` takes no others."""

    @property
    def index(self) -> int:
        """That of the output."""
        return int(self)


_OPERATIONS: dict[str, Callable[[ResultPlan, Any], Any]] = {
    "Add": lambda plan, found: plan.joined("+", found),
    "Mul": lambda plan, found: plan.joined("*", found),
    "Pow": lambda plan, found: plan.power(found),
    "FloorDiv": lambda plan, found: plan.joined("//", found),
    "Mod": lambda plan, found: plan.joined("%", found),
    "PythonMod": lambda plan, found: plan.joined("%", found),
    "Max": lambda plan, found: plan.joined("max", found),
    "Min": lambda plan, found: plan.joined("min", found),
}
