"""Which placements an op of ``DTensor`` runs with where sizes are open; a tape makes this change.

Torch weighs placements against each other by the bytes that they move. For symbolic sizes it does
so in another way than for numbers, with expressions, which takes seconds for a few ops. Here what
eager chooses for the sizes of the call is chosen, and noted as an assumption: a call of other sizes
asks eager again.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors.sizes.shapes import SYMBOLIC_NUMBERS, expression_of, is_expression
from funcaot.errors import FuncaotError

__all__ = ["replace", "restore"]

_PROPAGATION = "torch.distributed.tensor._sharding_prop"
_DISPATCH = "torch.distributed.tensor._dispatch"
_PROPAGATED = "_propagate_op_sharding_dispatch_slow_path"
_COSTS = "torch.distributed.tensor._collective_utils"


class _Original:
    """What is replaced."""

    select: Any = None
    bytes: Any = None
    decomposed: Any = None
    propagated: Any = None


def _environment(numbers: Any) -> Any:
    """The sizes' environment, if one of some numbers is symbolic and it is ours."""
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

    for number in numbers:
        if isinstance(number, SYMBOLIC_NUMBERS):
            environment = number.node.shape_env
            return environment if isinstance(environment, SizeEnvironment) else None
    return None


def _bytes(spec: Any) -> Any:
    """The bytes of the whole, as a number: nothing is chosen by it where sizes are open."""
    if spec.tensor_meta is None or _environment(spec.shape) is None:
        return _Original.bytes(spec)
    numbers = [_present(number) for number in spec.shape]
    return spec.tensor_meta.dtype.itemsize * math.prod(numbers)


def _present(number: Any) -> int:
    if not isinstance(number, SYMBOLIC_NUMBERS):
        return int(number)
    return int(number.node.shape_env.at_present(number.node.expr))


def _select(strategy: Any, op_schema: Any = None) -> Any:
    """What eager chooses for the sizes of the call."""
    if len(strategy.strategies) == 1:
        return strategy.strategies[0]
    if op_schema is None:
        _leave_closed(strategy)
        return _Original.select(strategy, op_schema)
    given = _Given(op_schema)
    environment = _environment(given.numbers)
    if environment is None:
        return _Original.select(strategy, op_schema)
    wanted = given.placements(tuple(map(_present, given.numbers)))
    for candidate in strategy.strategies:
        if _is_meant(_placements(candidate.input_specs, candidate.output_specs, given), wanted):
            if wanted[0] != given.inputs:
                environment.note(_condition(given, wanted), 1)
            return candidate
    from funcaot._torch.tensors.sizes.shapes import SizeError

    raise SizeError(
        f"{op_schema.op} runs with other placements where its sizes are numbers.",
        remedy="compile with dynamic=False.",
    )


def _decomposed(self: Any, op_schema: Any, *rest: Any, **more: Any) -> Any:
    """The same for an op without a rule, for which torch tries what placements there are."""
    given = _Given(op_schema)
    environment = _environment(given.numbers)
    if environment is None:
        return _Original.decomposed(self, op_schema, *rest, **more)
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSpec, OpStrategy

    wanted = given.placements(tuple(map(_present, given.numbers)))
    environment.note(_condition(given, wanted), 1)
    specs, mesh = op_schema.args_spec, op_schema.args_spec[0].mesh
    inputs = [
        DTensorSpec(mesh, placements, tensor_meta=spec.tensor_meta)
        for placements, spec in zip(wanted[0], specs, strict=True)
    ]
    outputs = [each and DTensorSpec(mesh, each) for each in wanted[1]]
    made = tuple(outputs) if len(outputs) > 1 else outputs[0]
    return OpStrategy([OpSpec(made, inputs, [[0.0] for _ in inputs])])


def _leave_closed(strategy: Any) -> None:
    """Let the program be for the sizes of this call."""
    for candidate in strategy.strategies:
        for spec in candidate.input_specs or ():
            for number in spec.shape if spec is not None and spec.tensor_meta is not None else ():
                int(number)


def _is_meant(candidate: tuple[Any, Any], wanted: tuple[Any, Any]) -> bool:
    """Whether placements are those that eager has: it says nothing of results that it won't give.

    A derivative of a norm computes those that its mask says, and a candidate has a place for each.
    """
    inputs, outputs = candidate
    return inputs == wanted[0] and all(
        other is None or one == other for one, other in zip(outputs, wanted[1], strict=True)
    )


def _placements(inputs: Any, outputs: Any, given: _Given) -> tuple[Any, Any]:
    if inputs is None:
        inputs = [outputs] * len(given.inputs)
    many = outputs if isinstance(outputs, list | tuple) else [outputs]
    return (
        tuple(spec.placements for spec in inputs),
        tuple(None if spec is None else spec.placements for spec in many),
    )


class _Given:
    """A call of an op: what is given to it, with its sizes apart.

    Attributes:
        inputs: Placements of the tensors.
        numbers: All sizes and strides, and other integers, in order.
    """

    def __init__(self, schema: Any) -> None:
        """Take a schema of torch's."""
        self._schema = schema
        self.inputs = tuple(spec.placements for spec in schema.args_spec)
        self.numbers: list[Any] = []
        _mapped((schema.args_schema, schema.kwargs_schema), self._read)

    def _read(self, number: Any) -> Any:
        self.numbers.append(number)
        return number

    def placements(self, sizes: tuple[int, ...]) -> tuple[Any, Any]:
        """What eager chooses for these: the placements of inputs and of outputs."""
        from torch.utils._python_dispatch import _disable_current_modes

        schema, left = self._schema, iter(sizes)
        arguments, keywords = _mapped(
            (schema.args_schema, schema.kwargs_schema), lambda _: next(left)
        )
        numbered = type(schema)(schema.op, arguments, keywords, schema_info=schema.schema_info)
        with _disable_current_modes(), torch._C._DisableFuncTorch():
            found = _propagator().propagate_op_sharding_non_cached(numbered)
        moved = found.redistribute_schema
        inputs = numbered.args_spec if moved is None else moved.args_spec
        return _placements(inputs, found.output_spec, self)


def _propagated(self: Any, *args: Any) -> Any:
    """What torch's gives; our own refusals aren't put into an error without a class."""
    try:
        return _Original.propagated(self, *args)
    except RuntimeError as error:
        if isinstance(error.__cause__, FuncaotError):
            raise error.__cause__ from None
        raise


def _propagator() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor._op_dispatcher.sharding_propagator  # type: ignore[attr-defined]


def _mapped(value: Any, of_number: Callable[[Any], Any]) -> Any:
    """A schema's arguments with other numbers."""
    if isinstance(value, dict):
        return {key: _mapped(each, of_number) for key, each in value.items()}
    if type(value) in (int, torch.SymInt):
        return of_number(value)
    if type(value) in (list, tuple, torch.Size):
        return type(value)([_mapped(each, of_number) for each in value])
    metadata = getattr(value, "tensor_meta", None)
    if metadata is None:
        return value
    shape = torch.Size([of_number(number) for number in metadata.shape])
    stride = tuple([of_number(number) for number in metadata.stride])
    return value.shallow_copy_with_tensor_meta(metadata._replace(shape=shape, stride=stride))


def _condition(given: _Given, wanted: Any) -> Any:
    """A function of the symbols: whether eager chooses the same for other sizes."""
    from funcaot._torch.tensors.sizes.size_environment import asked

    expressions = [expression_of(number) for number in given.numbers]

    @functools.lru_cache(maxsize=256)
    def is_same(*values: int) -> bool:
        known = dict(zip(symbols, values, strict=True))
        sizes = [int(each.xreplace(known)) if is_expression(each) else each for each in expressions]
        return given.placements(tuple(sizes)) == wanted

    symbols = sorted({s for e in expressions if is_expression(e) for s in e.free_symbols}, key=str)
    return asked(is_same, symbols)


def _places() -> tuple[tuple[str, Any, str, Any], ...]:
    """What is replaced: the name of the original, the owner, the name there, and by what."""
    propagation: Any = sys.modules[_PROPAGATION]
    return (
        ("select", propagation, "_select_min_cost_strategy", _select),
        ("bytes", sys.modules[_COSTS], "spec_to_bytes", _bytes),
        ("propagated", sys.modules[_DISPATCH].OpDispatcher, _PROPAGATED, _propagated),
        ("decomposed", propagation.DecompShardingStrategy, "propagate_strategy", _decomposed),
    )


def replace() -> None:
    """Make the change."""
    for name, owner, attribute, ours in _places():
        if getattr(owner, attribute) is not ours:
            setattr(_Original, name, getattr(owner, attribute))
            setattr(owner, attribute, ours)


def restore() -> None:
    """Take it back."""
    for name, owner, attribute, _ in _places():
        original = vars(_Original)[name]
        if original is not None:
            setattr(owner, attribute, original)
