"""Records of programs as plain data, which JSON holds, and back; ``saved`` writes all of it so."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.immutable_collections import immutable_list

from funcaot._torch.distributed.described_tensors import Meshes
from funcaot._torch.distributed.groups import GroupData, described_group
from funcaot._torch.tensors.sizes.written_expressions import (
    ExpressionError,
    expression_data,
    expression_from,
    is_symbolic,
)
from funcaot.aot.effects.actions.overwrite import Overwrite
from funcaot.aot.effects.effects import Effects, Mutation, Output
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.saved.errors import (
    NotSavedError,
    missing_is_not_loaded,
    missing_is_not_saved,
)
from funcaot.aot.subclasses.distributed import structure_data, structure_from
from funcaot.aot.tape.memory.views import StridedStep, View, ViewStep

Data: TypeAlias = Any
# A graph has lists of a type of their own.
_SEQUENCES = (tuple, list, torch.Size, immutable_list)
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def scalar_data(value: Any) -> Data:
    """A number, maybe one of open sizes, a text, a setting of torch, or a tuple or list of them.

    Raises:
        NotSavedError: For anything else.
    """
    kind = type(value)
    if kind in (bool, int, str, type(None)):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind in _SEQUENCES:
        name = "tuple" if isinstance(value, tuple) else "list"
        return {name: [scalar_data(item) for item in value]}
    if is_symbolic(value):
        try:
            return {"size": expression_data(value)}
        except ExpressionError as error:
            raise NotSavedError(str(error)) from error
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    raise NotSavedError(f"it has a constant of {kind.__module__}.{kind.__qualname__}")


def scalar_from(data: Data) -> Any:
    """The value that ``scalar_data`` described."""
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    if kind == "float":
        return float.fromhex(value)
    if kind == "complex":
        return complex(*map(float.fromhex, value))
    if kind in ("tuple", "list"):
        return {"tuple": tuple, "list": list}[kind](map(scalar_from, value))
    if kind == "size":
        return expression_from(value)
    if kind == "device":
        return torch.device(value)
    found = getattr(torch, value)
    if not isinstance(found, _TORCH):
        raise TypeError(f"torch.{value} is no setting")
    return found


def spec_data(spec: TensorSpec) -> Data:
    """A tensor's metadata."""
    if not all(type(n) is int or is_symbolic(n) for n in (*spec.shape, *spec.stride)):
        raise NotSavedError("it takes tensors without plain sizes")
    described = [
        list(map(scalar_data, spec.shape)),
        list(map(scalar_data, spec.stride)),
        scalar_data(spec.dtype),
        str(spec.device),
        scalar_data(spec.layout),
        spec.requires_grad,
        spec.is_leaf,
        scalar_data(spec.flags),
    ]
    if spec.structure is None:
        return described
    with missing_is_not_saved():
        return [*described, structure_data(spec.structure, spec_data)]


_NO_MESHES: Meshes = {}


def spec_from(data: Data, meshes: Meshes = _NO_MESHES) -> TensorSpec:
    """The metadata that ``spec_data`` described.

    Args:
        data: The description.
        meshes: Those of this process that a ``DTensor`` may be on.
    """
    shape, stride, dtype, device, layout, requires_grad, is_leaf, flags, *parts = data
    structure = None
    if parts:
        with missing_is_not_loaded():
            structure = structure_from(parts[0], spec_from, meshes)
    return TensorSpec(
        tuple(map(scalar_from, shape)),
        tuple(map(scalar_from, stride)),
        scalar_from(dtype),
        torch.device(device),
        scalar_from(layout),
        requires_grad,
        is_leaf,
        scalar_from(flags),
        structure,
    )


# --- effects ----------------------------------------------------------------------------------


def effects_data(effects: Effects) -> Data:
    """What a program does beside its graph.

    Raises:
        NotSavedError: For an effect that a file can't hold.
    """
    if effects.flats or effects.regions:
        raise NotSavedError("its inputs share memory")
    if effects.attached:
        raise NotSavedError("it leaves attributes or hooks on tensors")
    origins = _Origins()
    return {
        "mutations": [_mutation_data(mutation) for mutation in effects.mutations],
        "outputs": [_output_data(output, origins) for output in effects.outputs],
        "origins": origins.data,
    }


def effects_from(data: Data, results: Sequence[Any]) -> Effects:
    """The effects that ``effects_data`` described.

    Args:
        data: The description.
        results: What stands for the graph's results.
    """
    mutations = tuple(
        Mutation(index, tuple(Overwrite(value, by) for value, by in actions), versions)
        for index, actions, versions in data["mutations"]
    )
    origins: list[Origin] = []
    for described in data["origins"]:
        origins.append(_origin_from(described, origins))
    outputs = tuple(_output_from(output, origins) for output in data["outputs"])
    return Effects(tuple(results), mutations, outputs)


def _mutation_data(mutation: Mutation) -> Data:
    actions = []
    for action in mutation.actions:
        if type(action) is not Overwrite:
            raise NotSavedError(f"it changes an input otherwise than its data ({action})")
        actions.append([action.value, action.by])
    return [mutation.index, actions, mutation.versions]


def _output_data(output: Output, origins: _Origins) -> Data:
    view = None if output.view is None else view_data(output.view)
    origin = None if output.origin is None else origins.add(output.origin)
    return [scalar_data(output.value), output.result, output.source, view, origin]


def _output_from(data: Data, origins: Sequence[Origin]) -> Output:
    value, result, source, view, origin = data
    return Output(
        scalar_from(value),
        result,
        source,
        None if view is None else view_from(view),
        None if origin is None else origins[origin],
    )


class _Origins:
    """Tensors that the epilogue makes, each once, after those that it makes them of.

    Attributes:
        data: Their descriptions.
    """

    def __init__(self) -> None:
        """Describe none yet."""
        self.data: list[Data] = []
        self._known: dict[int, int] = {}

    def add(self, origin: Origin) -> int:
        """Describe one; its place among them.

        Raises:
            NotSavedError: If it is a part of a wrapper.
        """
        known = self._known.get(id(origin))
        if known is not None:
            return known
        if origin.part or origin.beside:
            raise NotSavedError(f"it returns a tensor that a file can't describe ({origin})")
        parent = None if origin.parent is None else self.add(origin.parent)
        view = None if origin.view is None else view_data(origin.view)
        flags = [origin.kind, view, origin.graft, origin.leaf, origin.parameter]
        self.data.append([origin.source, origin.result, parent, *flags])
        self._known[id(origin)] = len(self.data) - 1
        return self._known[id(origin)]


def _origin_from(data: Data, before: Sequence[Origin]) -> Origin:
    source, result, parent, kind, view, *flags = data
    start = None if parent is None else before[parent]
    return Origin(source, result, start, kind, None if view is None else view_from(view), *flags)


def view_data(view: View) -> Data:
    """A chain of views.

    Raises:
        NotSavedError: If one isn't made by an op of torch's.
    """
    if type(view) is not View:
        raise NotSavedError("it returns a view or a part of a tensor that wraps others")
    return [list(map(_step_data, view.steps)), view.recorded, view.from_no_grad, view.several]


def view_from(data: Data) -> View:
    """The chain that ``view_data`` described."""
    steps, *flags = data
    return View(tuple(map(_step_from, steps)), *flags)


def _step_data(step: ViewStep | StridedStep) -> Data:
    if isinstance(step, StridedStep):
        return {"strided": scalar_data((step.shape, step.stride, step.offset))}
    name = str(step.target)
    if not name.startswith("aten."):
        raise NotSavedError(f"it returns a view made by {name}")
    return {"op": [name, scalar_data(step.arguments), scalar_data(step.keywords), step.item]}


def _step_from(data: Data) -> ViewStep | StridedStep:
    if "strided" in data:
        return StridedStep(*scalar_from(data["strided"]))
    name, arguments, keywords, item = data["op"]
    _, packet, overload = name.split(".")
    target = getattr(getattr(torch.ops.aten, packet), overload)
    return ViewStep(target, scalar_from(arguments), scalar_from(keywords), item)


# --- bytes ----------------------------------------------------------------------------------------


class Blobs:
    """Bytes that a file will hold, each once, and the groups of ranks that a program waits for.

    Attributes:
        content: Bytes by digest.
        groups: What is said of each group.
        names: What each is called in this process.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.content: dict[str, bytes] = {}
        self.groups: list[GroupData] = []
        self.names: list[str] = []

    def group(self, name: str) -> int:
        """Note a group; its number among those of the program.

        Raises:
            NotSavedError: If it is gone.
        """
        with missing_is_not_saved():
            data = described_group(name)
        if data not in self.groups:
            self.groups.append(data)
            self.names.append(name)
        return self.groups.index(data)

    def add(self, content: bytes) -> str:
        """Keep bytes; their digest names them."""
        digest = hashlib.sha256(content).hexdigest()
        self.content.setdefault(digest, content)
        return digest

    def tensor(self, value: torch.Tensor) -> Data:
        """Keep what a tensor holds.

        Raises:
            NotSavedError: For a tensor that isn't a plain one on the CPU.
        """
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise NotSavedError(f"a constant is on {value.device} or not a plain tensor")
        dense = value.detach().resolve_conj().resolve_neg().contiguous()
        content = dense.flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        return [
            list(value.shape),
            list(value.stride()),
            scalar_data(value.dtype),
            self.add(content),
        ]


def tensor_from(data: Data, blobs: Mapping[str, bytes]) -> torch.Tensor:
    """The tensor that ``Blobs.tensor`` described."""
    shape, stride, dtype, digest = data
    dtype = scalar_from(dtype)
    made = torch.empty_strided(shape, stride, dtype=dtype)
    if math.prod(shape):
        flat = torch.frombuffer(bytearray(blobs[digest]), dtype=torch.uint8).view(dtype)
        made.copy_(flat.view(shape))
    return made
