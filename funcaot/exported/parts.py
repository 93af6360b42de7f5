"""What ``export`` compiles: one capture, or one for each part of the sizes, and their signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from funcaot._torch.tensors.artifacts import MODEL
from funcaot.aot.graph.settings import Settings
from funcaot.errors import UnsupportedError
from funcaot.exported.artifact import Arguments, Artifact, captured
from funcaot.exported.call import ExportedCall
from funcaot.exported.signature import ArtifactSignature, Part
from funcaot.exported.sizes.automatic import NarrowedError, Wanted
from funcaot.exported.sizes.dims import text
from funcaot.exported.sizes.open_dim import OpenDim
from funcaot.exported.sizes.parts import MOST, Box, PartError, narrowed, split, whole_of


def captured_in_parts(
    call: ExportedCall, wanted: Wanted, settings: Settings
) -> tuple[list[Artifact], ArtifactSignature]:
    """Capture a call for all sizes: once, or once for each part of them.

    Args:
        call: The call.
        wanted: The open dimensions of its tensors.
        settings: Those of the capture.

    Returns:
        The one that serves most sizes, then those for parts, which are asked first; and what they
        are together.

    Raises:
        UnsupportedError: For what an artifact can't do.
        Exception: Whatever the function raises, unchanged.
    """
    while True:
        try:
            artifact = captured(call, wanted, settings)
        except NarrowedError as error:  # Each time a dim is gone, or has fewer sizes.
            wanted = error.applied(wanted)
        except PartError as error:
            parts = _Parts(call, wanted, settings)
            artifacts = parts.captured(error)
            return artifacts, parts.signature(artifacts)
        else:
            return [artifact], artifact.signature


class _Parts:
    """Captures one call for parts of the sizes until all are served."""

    def __init__(self, call: ExportedCall, wanted: Wanted, settings: Settings) -> None:
        self._call, self._wanted, self._settings = call, wanted, settings

    def captured(self, first: PartError) -> list[Artifact]:
        """See ``captured_in_parts``; ``first`` is what the capture of all sizes said.

        Raises:
            UnsupportedError: If there would be too many parts, or one can't be captured.
        """
        whole = whole_of(self._dims)
        todo = self._split(whole, first, first)
        found: list[tuple[Box, Artifact]] = []
        while todo:
            if len(todo) + len(found) > MOST:
                raise first.refusal
            box = todo.pop(0)
            try:
                found.append((box, self._part(box, first)))
            except PartError as error:
                todo = self._split(box, error, first) + todo
        found.sort(key=lambda each: -_size(each[0]))
        return [dataclasses.replace(artifact, bounds=box) for box, artifact in found]

    def signature(self, artifacts: Sequence[Artifact]) -> ArtifactSignature:
        """What all of them are together: open sizes are those of the whole."""
        main, *others = (artifact.signature for artifact in artifacts)
        parts = [
            Part(f"{MODEL}_{number}", artifact.bounds, own.inputs, own.made, own.results)
            for number, (artifact, own) in enumerate(zip(artifacts[1:], others, strict=True), 2)
        ]
        given = Arguments(self._call).tensors
        return dataclasses.replace(
            main,
            dims={dim.name: (dim.low, dim.high) for dim in self._dims},
            derived={dim.name: dim.expression for dim in self._dims if dim.root},
            tensors=tuple(
                dataclasses.replace(own, shape=self._shape(tensor))
                for own, tensor in zip(main.tensors, given, strict=True)
            ),
            exact=any(own.exact for own in (main, *others)),
            parts=tuple(parts),
        )

    @property
    def _dims(self) -> list[OpenDim]:
        return [dim for dims in self._wanted.values() for dim in dims.values()]

    def _shape(self, tensor: torch.Tensor) -> tuple[int | str, ...]:
        dims = self._wanted.get(id(tensor), {})
        return tuple(
            dims[at].name if at in dims else int(size) for at, size in enumerate(tensor.shape)
        )

    @staticmethod
    def _split(box: Box, error: PartError, first: PartError) -> list[Box]:
        """A part, as a capture found it, before the rest."""
        rest = split(box, error.box)
        if rest is None:
            raise first.refusal
        return [{**box, **error.box}, *rest]

    def _part(self, box: Box, first: PartError) -> Artifact:
        call, wanted = narrowed(self._call, self._wanted, box)
        try:
            return captured(call, wanted, self._settings)
        except NarrowedError:
            raise first.refusal from None
        except PartError:
            raise
        except Exception as error:
            sizes = " and ".join(f"{name} is {text(*found)}" for name, found in box.items())
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnsupportedError(
                f"{call.name} can't be exported for all sizes: it fails where {sizes} ({reason}).",
                remedy="narrow the bounds of the Dim to the sizes that the function is for.",
            ) from error


def _size(box: Box) -> int:
    found = 1
    for low, high in box.values():
        found *= high - low + 1
    return found
