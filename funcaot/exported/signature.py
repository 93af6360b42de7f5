"""What an artifact says of itself: the record that ``export`` writes and ``load`` reads, as JSON.

It is a file of its own in the package and is never unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

from funcaot._torch.tensors.artifacts import MODEL
from funcaot.errors import ArtifactError

FORMAT = "funcaot artifact"
VERSION = 6
# The step that is ``as_strided`` with the offset counted from the tensor's own.
STRIDED = "strided"

Size: TypeAlias = int | str
# A node of a structure, see ``trees``; an expression of dims, see ``expressions``.
Tree: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class TensorSignature:
    """One tensor that a call brings.

    Attributes:
        name: Where it is among the arguments, or the parameter's name.
        dtype: ``float64`` style.
        shape: A number, or the name of a dim, for each dimension.
        device: Where it has to be.
        order: The dimensions from the outermost in memory to the innermost.

    Example:
        >>> from funcaot.exported.signature import TensorSignature
        >>> str(TensorSignature("positions", "float64", ("atoms", 3), "cpu", (0, 1)))
        'float64[atoms, 3]'
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    device: str
    order: tuple[int, ...]

    def __str__(self) -> str:
        """``float64[atoms, 3]`` style."""
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return text if self.device == "cpu" else f"{text} on {self.device}"


@dataclass(frozen=True)
class Made:
    """One tensor of the result, and how it is made.

    Attributes:
        start: ``("output", i)`` of the compiled graph, ``("argument", i)``, ``("parameter", i)``,
            or ``("made", i)``, an earlier one of these.
        steps: View ops from there: name, overload, arguments, keywords, item.
    """

    start: tuple[str, int]
    steps: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Part:
    """A program for a part of the sizes, for which the function does something else.

    Attributes:
        model: Its name in the package.
        bounds: Least and largest size of each dim.
        inputs: As those of ``ArtifactSignature``.
        made: See there.
        results: See there.
    """

    model: str
    bounds: Mapping[str, tuple[int, int]]
    inputs: tuple[tuple[str, int], ...]
    made: tuple[Made, ...]
    results: Tree


@dataclass(frozen=True)
class ArtifactSignature:
    """All that a caller has to know of an artifact.

    Attributes:
        name: The exported function.
        funcaot: The version that exported it.
        torch: The version of torch that compiled it.
        hardware: What it was compiled for: ``machine``, ``system``, ``flags`` of the processor,
            ``threads``.
        dims: Least and largest size of each open dimension.
        arguments: Structure of ``(args, kwargs)``.
        tensors: The tensors among the arguments.
        same: Pairs of them that are one object.
        exact: Whether tensors have to lie in memory as in the exported call, since the function
            reads memory by strides.
        parameters: The tensors that a call brings besides, by name.
        tied: Further names of parameters that are one with a parameter, and its name.
        inputs: What the compiled graph is given: ``("argument", i)`` or ``("parameter", i)``.
        made: The tensors of the result.
        results: Structure of the result.
        derived: How dims are computed from others, by name.
        parts: Programs for a part of the sizes; ``inputs``, ``made`` and ``results`` are those of
            the model that serves all other sizes.
        names: What the function calls its positional arguments; empty for those without a keyword.
    """

    name: str
    funcaot: str
    torch: str
    hardware: Mapping[str, Any]
    dims: Mapping[str, tuple[int, int]]
    arguments: Tree
    tensors: tuple[TensorSignature, ...]
    same: tuple[tuple[int, int], ...]
    exact: bool
    parameters: tuple[TensorSignature, ...]
    tied: Mapping[str, str]
    inputs: tuple[tuple[str, int], ...]
    made: tuple[Made, ...]
    results: Tree
    derived: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def models(self) -> list[str]:
        """The names of the compiled graphs in the package: its own, then those of the parts."""
        return [MODEL, *(part.model for part in self.parts)]

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str, path: str) -> ArtifactSignature:
        """Read the text of the file.

        Args:
            text: The text.
            path: The artifact, for messages.

        Raises:
            ArtifactError: If it isn't what this version writes.
        """
        try:
            found = json.loads(text)
            if found.pop("format", None) != FORMAT:
                raise ValueError("another format")
            version = found.pop("version", None)
        except (ValueError, AttributeError) as error:
            raise foreign(path, f"its signature can't be read: {error}") from None
        if version != VERSION:
            raise ArtifactError(
                f"{path} was written by another version of funcaot, {found.get('funcaot')}.",
                expected=f"an artifact of format {VERSION}",
                got=f"format {version}",
                remedy="export the function again with the version that loads it.",
            )
        try:
            return _read(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"its signature is incomplete: {type(error).__name__}: {error}"
            raise foreign(path, reason) from None


def _read(found: dict[str, Any]) -> ArtifactSignature:
    known = {item.name for item in fields(ArtifactSignature)}
    if set(found) != known:
        raise KeyError(", ".join(sorted(set(found) ^ known)))
    return ArtifactSignature(
        **{
            **found,
            "dims": _bounds(found["dims"]),
            "tensors": tuple(map(_tensor, found["tensors"])),
            "parameters": tuple(map(_tensor, found["parameters"])),
            "same": _pairs(found["same"]),
            "inputs": _pairs(found["inputs"]),
            "made": _made(found["made"]),
            "names": tuple(map(str, found["names"])),
            "parts": tuple(
                Part(
                    str(part["model"]),
                    _bounds(part["bounds"]),
                    _pairs(part["inputs"]),
                    _made(part["made"]),
                    part["results"],
                )
                for part in found["parts"]
            ),
        }
    )


def _bounds(found: Mapping[str, Sequence[Any]]) -> dict[str, tuple[int, int]]:
    return {name: (int(low), int(high)) for name, (low, high) in found.items()}


def _made(found: Sequence[Mapping[str, Any]]) -> tuple[Made, ...]:
    return tuple(
        Made((str(item["start"][0]), int(item["start"][1])), tuple(item["steps"])) for item in found
    )


def _tensor(found: dict[str, Any]) -> TensorSignature:
    shape, order = tuple(found.pop("shape")), tuple(found.pop("order"))
    return TensorSignature(shape=shape, order=order, **found)


def _pairs(found: Sequence[Sequence[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in found)


def foreign(path: str, reason: str) -> ArtifactError:
    """What is raised for a file that isn't an artifact."""
    return ArtifactError(
        f"{path} isn't an artifact of funcaot.export: {reason}.",
        remedy="pass the path that funcaot.export wrote; a package of torch's own is loaded by "
        "torch._inductor.aoti_load_package.",
    )
