"""Open sizes of a program as data, and made again: symbols, where calls show them, what must hold.

The symbols of a loaded program are in an environment of its own, in which nothing is traced. What
isn't in the file is captured with symbols of the same names, which are equal.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from funcaot._torch.tensors.sizes.written_expressions import (
    ExpressionError,
    KnownSizes,
    expression_data,
    expression_from,
)
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.spec_sizes import Shown
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.lowering.open_sizes import OpenSizes
from funcaot.aot.saved.codec import Data, spec_data, spec_from
from funcaot.aot.saved.errors import NotLoadedError, NotSavedError
from funcaot.aot.segment.backward_sizes import BackwardSizes
from funcaot.aot.signature.numbers import Numbers, Whole
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Conditions, Sizes
from funcaot.base.numpy_kinds import NUMPY_KINDS

if TYPE_CHECKING:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment


def _written(value: Any) -> Data:
    try:
        return expression_data(value)
    except ExpressionError as error:
        raise NotSavedError(f"it leaves sizes open, and {error}") from error


def _sources_data(sources: Sequence[Shown]) -> Data:
    return [[source.index, source.dim, list(source.path)] for source in sources]


def _sources_from(data: Data) -> tuple[Shown, ...]:
    return tuple(Shown(index, dim, tuple(path)) for index, dim, path in data)


# --- numbers --------------------------------------------------------------------------------------

_KINDS = {kind.__name__: kind for kind in (float, int, Whole, *NUMPY_KINDS)}


def numbers_data(numbers: Numbers | None) -> Data:
    """Which leaves of a call are open numbers, and what is assumed of them."""
    if numbers is None:
        return None
    return {
        "kinds": [[position, kind.__name__] for position, kind in numbers.kinds.items()],
        "read": [numbers.read.start, numbers.read.stop],
        "answers": [list(answer) for answer in numbers.log.answers.items()],
        "fixed": sorted(numbers.log.fixed),
    }


def numbers_from(data: Data) -> Numbers | None:
    """What ``numbers_data`` described."""
    if data is None:
        return None
    kinds = {position: _KINDS[kind] for position, kind in data["kinds"]}
    found = Numbers(kinds, range(*data["read"]))
    found.log.answers.update(map(tuple, data["answers"]))
    found.log.fixed.update(data["fixed"])
    return found


# --- the call -------------------------------------------------------------------------------------


def sizes_data(sizes: Sizes | None) -> Data:
    """What calls a program serves besides those of its signature.

    Raises:
        NotSavedError: If sizes are asked of a function of Python's.
    """
    if sizes is None:
        return None
    if sizes.environment.least:
        raise NotSavedError("sizes inside of its arguments are open")
    return {
        "symbols": [_written(symbol) for symbol in sizes.environment.symbols],
        "sources": _sources_data(sizes.sources),
        "answers": conditions_data(sizes.conditions),
    }


def sizes_from(data: Data, described: Data, signature: Signature, *, traces: bool) -> Sizes:
    """The open sizes of a saved program, in an environment of their own.

    Args:
        data: What ``sizes_data`` made.
        described: The program's signature, as it was saved.
        signature: That of a call, which is like it but for sizes.
        traces: Whether the call is going to be traced with them.

    Raises:
        NotLoadedError: If this torch names symbols otherwise.
    """
    sources = _sources_from(data["sources"])
    symbols = [expression_from(symbol) for symbol in data["symbols"]]
    values = [max(2, int(source.read(signature.leaves))) for source in sources]
    environment: Any = _traced(values) if traces else KnownSizes(symbols, values)
    if list(environment.symbols) != symbols:
        raise NotLoadedError("symbols for sizes have other names")
    leaves = tuple(
        spec_from(known["tensor"]) if isinstance(leaf, TensorSpec) else leaf
        for leaf, known in zip(signature.leaves, described["leaves"], strict=True)
    )
    sizes = Sizes(environment, dataclasses.replace(signature, leaves=leaves), sources)
    sizes.conditions.answers.update(_answers_from(data["answers"]))
    return sizes


def _traced(values: Sequence[int]) -> SizeEnvironment:
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

    environment = SizeEnvironment()
    for value in values:
        environment.add_size(value)
    return environment


def without_sizes(described: Data) -> str:
    """What a saved signature has besides sizes and strides, to be compared with another one's."""
    leaves = [
        {"tensor": [len(leaf["tensor"][0]), *leaf["tensor"][2:]]} if "tensor" in leaf else leaf
        for leaf in described["leaves"]
    ]
    return json.dumps({**described, "leaves": leaves})


@dataclasses.dataclass(frozen=True)
class Served:
    """The calls that a saved program serves.

    Attributes:
        signature: Of one of them; with symbols for open sizes, and tensors for open numbers.
        sizes: The open sizes, if there are any.
        numbers: The open numbers, if there are any.
    """

    signature: Signature
    sizes: Sizes | None
    numbers: Numbers | None


def served_by(data: Data, signature: Signature, *, traces: bool = False) -> Served:
    """What calls a saved program serves, one of which is given.

    Args:
        data: The program.
        signature: That of a call.
        traces: Whether the call is going to be traced.

    Raises:
        NotLoadedError: If the program doesn't serve the call.
    """
    numbers = numbers_from(data["numbers"])
    opened: Signature | None = signature
    if numbers is not None:
        opened = numbers.signature(signature)
        if opened is None or not numbers.hold(signature):
            raise NotLoadedError("no call of such numbers was saved")
    if data["sizes"] is None:
        return Served(opened, None, numbers)
    sizes = sizes_from(data["sizes"], data["signature"], opened, traces=traces)
    if not sizes.match(opened):
        raise NotLoadedError("no call of such sizes was saved")
    return Served(sizes.signature, sizes, numbers)


# --- what is assumed ------------------------------------------------------------------------------


def conditions_data(conditions: Conditions | None) -> Data:
    """Questions about sizes, with their answers."""
    if conditions is None:
        return None
    return [
        [_written(question), _written(answer)] for question, answer in conditions.answers.items()
    ]


def conditions_from(
    data: Data, environment: SizeEnvironment, symbols: Sequence[Any] | None = None
) -> Conditions:
    """What ``conditions_data`` described, for sizes of all symbols or of some."""
    found = Conditions(environment, symbols)
    found.answers.update(_answers_from(data))
    return found


def _answers_from(data: Data) -> dict[Any, Any]:
    return {expression_from(question): expression_from(answer) for question, answer in data}


# --- graphs and backwards -------------------------------------------------------------------------


def graph_sizes_data(sizes: OpenSizes | None) -> Data:
    """Where a graph's operands show the sizes that it takes."""
    if sizes is None:
        return None
    return [[_written(symbol) for symbol in sizes.symbols], _sources_data(sizes.sources)]


def graph_sizes_from(data: Data, environment: SizeEnvironment | None) -> OpenSizes | None:
    """What ``graph_sizes_data`` described."""
    if data is None or environment is None:
        return None
    symbols, sources = data
    return OpenSizes(environment, tuple(map(expression_from, symbols)), _sources_from(sources))


def backward_sizes_data(sizes: BackwardSizes | None) -> Data:
    """How the backwards of a form know their sizes."""
    if sizes is None:
        return None
    return {
        "sources": _sources_data(sizes.sources),
        "shapes": [[_written(number) for number in shape] for shape in sizes.shapes],
        "kept": [spec_data(spec) for spec in sizes.kept],
    }


class LoadedBackwardSizes(BackwardSizes):
    """How the backwards of a saved form know their sizes."""

    def __init__(self, data: Data, environment: SizeEnvironment) -> None:
        """Make what ``backward_sizes_data`` described."""
        self.environment = environment
        self.sources = _sources_from(data["sources"])
        shapes = tuple(tuple(map(expression_from, shape)) for shape in data["shapes"])
        self.__dict__.update(shapes=shapes, kept=tuple(map(spec_from, data["kept"])))
        self._known = Derived()
