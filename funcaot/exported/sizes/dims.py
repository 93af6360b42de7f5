"""Dims of ``dynamic_shapes``: which sizes of a call stay open, and within which bounds."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.tensors.sizes import shapes
from funcaot.aot.graph.location import Location
from funcaot.aot.graph.spec_sizes import Shown
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Sizes, symbolic_strides
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.exported.call import ExportedCall
from funcaot.exported.sizes.asked import Answers
from funcaot.exported.sizes.automatic import narrow
from funcaot.exported.sizes.open_dim import UNBOUNDED, OpenDim
from funcaot.exported.sizes.parts import PartError, part_of

# The most sizes at which a condition is looked at one by one.
_TRIED = 100_000


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """The open sizes of a function that is exported.

    Attributes:
        sizes: The symbols, and a signature made of them; None if all sizes are closed.
        dims: The dim of each symbol.
        derived: The dims that are computed from others, by their expressions.
    """

    sizes: Sizes | None
    dims: Mapping[Any, OpenDim]
    derived: Mapping[Any, OpenDim] = field(default_factory=dict)

    @property
    def all_dims(self) -> list[OpenDim]:
        """All of them."""
        return [*self.dims.values(), *self.derived.values()]

    def dim_of(self, size: Any) -> OpenDim | None:
        """The dim that a size is; None for a number."""
        return self.dims.get(size) or self.derived.get(size)


def read_dynamic_shapes(call: ExportedCall, dynamic_shapes: Any) -> dict[int, dict[int, OpenDim]]:
    """The open dimensions of each tensor argument, by the ``id`` of the tensor.

    Args:
        call: What is exported.
        dynamic_shapes: As in ``torch.export.export``: for each argument, by position or by name,
            ``{dimension: Dim}`` or a sequence of a Dim or None for each dimension.

    Raises:
        ArgumentError: For what doesn't fit the arguments.
        UnsupportedError: For sizes of 0 and 1.
    """
    found: dict[int, dict[int, OpenDim]] = {}
    if not dynamic_shapes:
        return found
    known: dict[str, OpenDim] = {}
    for where, given, spec in _arguments(call, dynamic_shapes):
        for path, tensor, dims in _tensors(given, spec, where, call.name):
            for dim, wanted in dims:
                _check_number(wanted, tensor.shape[dim], f"{path} dimension {dim}", call.name)
                made = _open_dim(wanted, tensor.shape[dim], f"{path} dimension {dim}", call.name)
                if made is None or (made.may_be_closed and made.example < 2):
                    continue
                if known.setdefault(made.name, made) != made:
                    expected = "Dims of one name with the same bounds"
                    raise _bad(call.name, path, expected, made.name)
                _check_example(made, tensor.shape[dim], f"dimension {dim} of {path}", call.name)
                found.setdefault(id(tensor), {})[dim] = made
    return found


def _arguments(call: ExportedCall, dynamic_shapes: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each argument that has a specification: where it is, itself, and that."""
    if isinstance(dynamic_shapes, Mapping):
        places, rest = _names(call.owner, call.args)
        by_name = {place: (f"argument {place!r}", call.args[i]) for i, place in enumerate(places)}
        if rest is not None:
            named = sum(not place.startswith("args[") for place in places)
            by_name[rest] = f"arguments {rest!r}", call.args[named:]
        by_name |= {key: (f"argument {key!r}", value) for key, value in call.kwargs.items()}
        for key, value in _bound(call).items():
            by_name.setdefault(key, (f"arguments {key!r}", value))
        for key, spec in dynamic_shapes.items():
            if key not in by_name:
                expected = f"names among {list(by_name)}"
                raise _bad(call.name, "dynamic_shapes", expected, repr(key))
            yield (*by_name[key], spec)
        return
    bound = _bound(call)
    if _are_for(bound, dynamic_shapes, call):
        for (key, given), spec in zip(bound.items(), dynamic_shapes, strict=True):
            yield f"argument {key!r}", given, spec
        return
    if not isinstance(dynamic_shapes, tuple | list) or len(dynamic_shapes) > len(call.args):
        expected = f"a dictionary by name, or a tuple for the {len(call.args)} positional arguments"
        raise _bad(call.name, "dynamic_shapes", expected, repr(dynamic_shapes))
    for index, (given, spec) in enumerate(zip(call.args, dynamic_shapes, strict=False)):
        yield f"argument {index}", given, spec


def _bound(call: ExportedCall) -> dict[str, Any]:
    """The arguments as the function takes them, so that those of ``*args`` are one tuple."""
    target = call.owner.forward if isinstance(call.owner, torch.nn.Module) else call.owner
    try:
        return dict(inspect.signature(target).bind(*call.args, **call.kwargs).arguments)
    except (TypeError, ValueError):
        return {}


def _are_for(bound: Mapping[str, Any], specs: Any, call: ExportedCall) -> bool:
    """Whether a tuple specifies arguments as the function takes them, and not one by one."""
    if not isinstance(specs, tuple | list) or len(specs) != len(bound):
        return False
    if len(bound) == len(call.args) and all(map(operator.is_, bound.values(), call.args)):
        return False
    rest = [
        (given, spec)
        for given, spec in zip(bound.values(), specs, strict=True)
        if type(given) is tuple and not any(given is each for each in call.args)
    ]
    return all(
        spec is None
        or (
            isinstance(spec, tuple | list)
            and len(spec) == len(given)
            and all(each is None or isinstance(each, Mapping | tuple | list) for each in spec)
        )
        for given, spec in rest
    )


def _names(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[list[str], str | None]:
    """The names of positional arguments, and of ``*args`` if the last ones are among them."""
    try:
        target = function.forward if isinstance(function, torch.nn.Module) else function
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    return [names[i] if i < len(names) else f"args[{i}]" for i in range(len(args))], rest


def _tensors(
    given: Any, spec: Any, path: str, name: str
) -> Iterator[tuple[str, torch.Tensor, list[tuple[int, Any]]]]:
    """The tensors of an argument, each with the dims given for it."""
    if spec is None:
        return
    if isinstance(given, torch.Tensor):
        yield path, given, _dims_of(given, spec, path, name)
        return
    if isinstance(given, Mapping) and isinstance(spec, Mapping) and set(spec) <= set(given):
        for key, part in spec.items():
            yield from _tensors(given[key], part, f"{path}[{key!r}]", name)
        return
    if isinstance(given, tuple | list) and isinstance(spec, tuple | list):
        if len(given) == len(spec):
            for index, (item, part) in enumerate(zip(given, spec, strict=True)):
                yield from _tensors(item, part, f"{path}[{index}]", name)
            return
    raise _bad(name, path, "the structure of the argument, with Dims for tensors", repr(spec))


def _dims_of(tensor: torch.Tensor, spec: Any, path: str, name: str) -> list[tuple[int, Any]]:
    rank = tensor.dim()
    if isinstance(spec, Mapping) and all(type(dim) is int for dim in spec):
        if all(-rank <= dim < rank for dim in spec):
            return [(dim % rank, wanted) for dim, wanted in spec.items()]
    elif isinstance(spec, tuple | list) and len(spec) == rank:
        return list(enumerate(spec))
    raise _bad(
        name, path, f"{{dimension: Dim}} or a tuple of {rank} for {rank} dimensions", repr(spec)
    )


def _check_number(wanted: Any, size: int, where: str, name: str) -> None:
    if type(wanted) is int and wanted != size:
        raise _bad(name, where, f"{size}, the size of the example", str(wanted))


def _open_dim(wanted: Any, size: int, where: str, name: str) -> OpenDim | None:
    """A Dim as a record; None for a size that stays closed."""
    if wanted is None or type(wanted) is int or wanted is torch.export.Dim.STATIC:
        return None
    hint = getattr(wanted, "type", None)
    if hint in (torch.export.Dim.AUTO.type, torch.export.Dim.DYNAMIC.type):
        made = "".join(letter if letter.isalnum() else "_" for letter in where)
        may_be_closed = hint == torch.export.Dim.AUTO.type
        low, high = max(wanted.min or 2, 2), wanted.max or UNBOUNDED
        return OpenDim(made, low, high, is_named=False, may_be_closed=may_be_closed, example=size)
    if type(getattr(wanted, "root", None)) is torch.export.Dim:
        return _derived(wanted, _open_dim(wanted.root, size, where, name), name)
    if type(wanted) is not torch.export.Dim:
        expected = "torch.export.Dim(name, min=..., max=...), None, or a number"
        raise _bad(name, where, expected, repr(wanted))
    low, high = int(wanted.min), _number(wanted.max)
    if low == 1 or high < 2:
        raise UnsupportedError(
            f"{name} can't be exported with sizes of 0 or 1 for {wanted.__name__!r}: many ops "
            "do something else there (they broadcast).",
            expected="min=2 or more",
            got=f"min={low}, max={high}",
            remedy="give the Dim min=2, and export an artifact of its own for size 1, without a "
            "Dim there.",
        )
    return OpenDim(wanted.__name__, max(low, 2), high)


def _derived(wanted: Any, root: OpenDim | None, name: str) -> OpenDim | None:
    """A Dim that is computed from another one, which torch lets be ``a * dim + b``."""
    if root is None:
        return None
    shift = int(wanted.fn(0))
    scale = int(wanted.fn(1)) - shift
    found = OpenDim(wanted.__name__, 0, 0, root=root.name, scale=scale, shift=shift).within(root)
    if found.low < 2:
        raise UnsupportedError(
            f"{name} can't be exported with a size of {found.low} for {wanted.__name__!r}, where "
            f"{root.name!r} is {root.low}: many ops do something else there (they broadcast).",
            expected="sizes of 2 or more",
            got=f"{root.name} of at least {root.low}",
            remedy="give that Dim a larger min.",
        )
    return found


def _number(bound: Any) -> int:
    """A bound as a number; torch's infinite one isn't an int."""
    return int(bound) if bound < UNBOUNDED else UNBOUNDED


def _check_example(dim: OpenDim, size: int, where: str, name: str) -> None:
    if not dim.low <= size <= dim.high:
        raise ArgumentError(
            f"{name} is exported with an example whose {where} is out of the bounds of "
            f"{dim.name!r}.",
            expected=bounds(dim),
            got=str(size),
            remedy="pass example arguments with sizes within the bounds.",
        )


def bounds(dim: OpenDim) -> str:
    """``2 to 64`` style."""
    return text(dim.low, dim.high)


def text(low: int, high: int) -> str:
    """The same of bounds; one size is a number."""
    if high >= UNBOUNDED:
        return f"at least {low}"
    return f"{low} to {high}" if low < high else str(low)


def _bad(name: str, where: str, expected: str, got: str) -> ArgumentError:
    return ArgumentError(
        f"{name} can't be exported with these dynamic_shapes: {where}.",
        expected=expected,
        got=got,
        remedy="see torch.export.Dim: a Dim for each size that may change, None for the others.",
    )


def opened(signature: Signature, wanted: Sequence[Mapping[int, OpenDim]], name: str) -> OpenSizes:
    """A signature with a symbol for each dim.

    Args:
        signature: Of the call.
        wanted: For each leaf the open dimensions.
        name: The function, for messages.

    Raises:
        ArgumentError: If one dim has two sizes in the example.
    """
    from funcaot._torch.tensors.sizes.size_environment import SizeEnvironment

    environment = SizeEnvironment()
    symbols: dict[str, tuple[Any, int]] = {}
    sources: list[Shown] = []
    dims: dict[Any, OpenDim] = {}
    derived: dict[Any, OpenDim] = {}
    leaves: list[Any] = []
    for index, position, dim in _by_root(signature, wanted):
        size = signature.leaves[index].shape[position]  # type: ignore[union-attr]
        if dim.root:
            symbols[dim.name] = _computed(dim, symbols, size, name)
            derived[symbols[dim.name][0]] = dim
        elif dim.name not in symbols:
            symbol = environment.add_size(size, (dim.low, dim.high))
            symbols[dim.name] = symbol, size
            sources.append(Shown(index, position))
            dims[symbol] = dim
    for index, leaf in enumerate(signature.leaves):
        if not wanted[index] or not isinstance(leaf, TensorSpec):
            leaves.append(leaf)
            continue
        shape: list[Any] = list(leaf.shape)
        for position, dim in sorted(wanted[index].items()):
            size = leaf.shape[position]
            symbol, known = symbols[dim.name]
            if known != size:
                raise ArgumentError(
                    f"{name} is exported with an example in which {dim.name!r} has two sizes.",
                    expected=f"{known} in all tensors",
                    got=str(size),
                    remedy="name the Dims differently, or pass tensors of equal sizes.",
                )
            shape[position] = symbol
        stride = symbolic_strides(shape, leaf.shape, leaf.stride)
        leaves.append(dataclasses.replace(leaf, shape=tuple(shape), stride=stride))
    if not sources:
        return OpenSizes(None, {})
    general = dataclasses.replace(signature, leaves=tuple(leaves))
    sizes = Sizes(environment, general, tuple(sources))
    environment.facts = sizes.conditions.answers = Answers()
    return OpenSizes(sizes, dims, derived)


def _by_root(
    signature: Signature, wanted: Sequence[Mapping[int, OpenDim]]
) -> list[tuple[int, int, OpenDim]]:
    """The open dimensions of all leaves, those last that are computed from others."""
    found = [
        (index, position, dim)
        for index, leaf in enumerate(signature.leaves)
        if isinstance(leaf, TensorSpec)
        for position, dim in sorted(wanted[index].items())
    ]
    return sorted(found, key=lambda each: bool(each[2].root))


def _computed(
    dim: OpenDim, symbols: Mapping[str, tuple[Any, int]], size: int, name: str
) -> tuple[Any, int]:
    """The expression of a dim that is computed from another one, and its size."""
    if dim.root not in symbols:
        raise ArgumentError(
            f"{name} can't be exported with {dim.name!r}, where no tensor has the size "
            f"{dim.root!r}: a call couldn't tell it.",
            expected=f"{dim.root!r} itself in some tensor",
            got=dim.name,
            remedy=f"name {dim.name!r} as a Dim of its own.",
        )
    symbol, known = symbols[dim.root]
    if dim.of(known) != size:
        raise ArgumentError(
            f"{name} is exported with an example in which {dim.name!r} isn't that.",
            expected=f"{dim.of(known)}, where {dim.root} is {known}",
            got=str(size),
            remedy="pass tensors whose sizes agree.",
        )
    return dim.of(symbol), size


def check_conditions(
    open_sizes: OpenSizes, name: str, lines: Mapping[str, Location] | None = None
) -> None:
    """Prove that what a capture assumed about sizes is true of all sizes within the bounds.

    Args:
        open_sizes: The sizes.
        name: The function.
        lines: Where it calls each op, for the message.

    Raises:
        UnsupportedError: If it isn't; the message says for which sizes it is.
        NarrowedError: If it is for dims that are left to the capture, when they are narrower.
        PartError: If it is for a part of the sizes, so that others may have programs of their own.
    """
    if open_sizes.sizes is None:
        return
    open_ones = [found for found in _conditions(open_sizes, lines or {}) if not found.is_always()]
    for found in open_ones:
        narrow(found.condition, found.symbols, found.dims)
    box: dict[str, tuple[int, int]] = {}
    refusals: list[tuple[int, UnsupportedError]] = []
    for found in open_ones:
        error = found.refused(name)
        if error is None:
            continue
        part = found.part()
        if part is None:
            raise error
        dim, (low, high) = part
        refusals.append((high - low, error))
        least, largest = box.get(dim, (low, high))
        box[dim] = max(low, least), min(high, largest)
    if refusals:  # What leaves the fewest sizes says the most.
        raise PartError(box, min(refusals, key=lambda each: each[0])[1])


@dataclass(frozen=True, eq=False)
class _Condition:
    """What a capture assumed, with the symbols in it, their dims, sizes of the example, where."""

    condition: Any
    symbols: Sequence[Any]
    dims: Sequence[OpenDim]
    sizes: Sequence[int]
    where: str = ""

    def is_always(self) -> bool:
        """Whether it is found true of all sizes by intervals."""
        ranges = ((dim.low, dim.high) for dim in self.dims)
        return shapes.is_always(self.condition, dict(zip(self.symbols, ranges, strict=True)))

    @property
    def can_be_tried(self) -> bool:
        """Whether there are so few sizes that each is tried."""
        return math.prod(dim.high - dim.low + 1 for dim in self.dims) <= _TRIED

    def refused(self, name: str) -> UnsupportedError | None:
        """What to say of a size of which it is false, or that there may be one; else None."""
        assumed = str(self.condition)
        for symbol, dim in zip(self.symbols, self.dims, strict=True):
            assumed = assumed.replace(str(symbol), dim.name)
        assumed += f", {self.where}" if self.where else ""
        if not self.can_be_tried:
            return _assumes(name, assumed, self.dims, "for which that can't be proved")
        holds = self._holds()
        tried = itertools.product(*(range(dim.low, dim.high + 1) for dim in self.dims))
        false = next((numbers for numbers in tried if not holds(numbers)), None)
        if false is None:
            return None
        example = ", ".join(f"{d.name} = {n}" for d, n in zip(self.dims, false, strict=True))
        return _assumes(name, assumed, self.dims, f"and it is false of {example}")

    def part(self) -> tuple[str, tuple[int, int]] | None:
        """Sizes of one dim for which it is true, around those of the example."""
        if not all(dim.is_named for dim in self.dims):
            return None
        holds = self._holds() if self.can_be_tried else None
        dims = dict(zip(self.symbols, self.dims, strict=True))
        sizes = dict(zip(self.symbols, self.sizes, strict=True))
        return part_of(self.condition, dims, sizes, holds)

    def _holds(self) -> Callable[[tuple[int, ...]], bool]:
        check = shapes.evaluator(self.symbols, [self.condition])
        return lambda numbers: _is_true(check, numbers)


def _conditions(open_sizes: OpenSizes, lines: Mapping[str, Location]) -> Iterator[_Condition]:
    sizes = open_sizes.sizes
    if sizes is None:
        return
    answers = sizes.conditions.answers
    for question, answer in list(answers.items()):
        condition = shapes.as_condition(question, answer)
        symbols = sorted(condition.free_symbols, key=str)
        dims = [open_sizes.dims[symbol] for symbol in symbols]
        now = [int(sizes.environment.at_present(symbol)) for symbol in symbols]
        where = answers.said(question, lines) if isinstance(answers, Answers) else ""
        yield _Condition(condition, symbols, dims, now, where)


def _is_true(holds: Callable[..., tuple[Any, ...]], numbers: tuple[int, ...]) -> bool:
    try:
        return all(holds(*numbers))
    except ArithmeticError:
        return False


def _assumes(name: str, assumed: str, dims: Sequence[OpenDim], why: str) -> UnsupportedError:
    names = ", ".join(f"{dim.name} ({bounds(dim)})" for dim in dims)
    return UnsupportedError(
        f"{name} can't be exported for all sizes of {names}: what it does assumes {assumed}, "
        f"{why}.",
        remedy="narrow the bounds of the Dim; give equal sizes the same Dim; use x.shape[0] as it "
        "is, not as a number (int(), len(), range()); differentiate in reverse mode rather than "
        "forward (jacrev(grad(f)) for hessian(f)); or export an artifact for each size.",
    )
