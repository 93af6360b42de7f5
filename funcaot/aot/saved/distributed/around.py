"""What is done around a graph whose caller has ``DTensor``s, as data; ``executables`` writes it."""

from __future__ import annotations

from typing import Any

from funcaot._torch.distributed.described_tensors import Meshes
from funcaot.aot.lowering.wrappers import Around, Detached, Given, Made, Run, Source
from funcaot.aot.saved.codec import Data, spec_data, spec_from, view_data, view_from
from funcaot.aot.saved.distributed.structures import structure_data, structure_from
from funcaot.aot.saved.errors import NotSavedError
from funcaot.aot.subclasses.nodes import Wrapped


def around_data(around: Around) -> Data:
    """What is taken out of operands and made of results.

    Raises:
        NotSavedError: If it makes anything but ``DTensor``s of known sizes.
    """
    return {
        "given": list(map(_given_data, around.given)),
        "results": list(map(_source_data, around.results)),
        "arity": around.arity,
    }


def around_from(data: Data, run: Run, meshes: Meshes) -> Around:
    """The same around an executable of this process.

    Raises:
        NotLoadedError: If it makes a ``DTensor`` on a mesh that there isn't.
    """
    return Around(
        run,
        tuple(map(_given_from, data["given"])),
        tuple(_source_from(each, meshes) for each in data["results"]),
        data["arity"],
    )


def _given_data(given: Given) -> Data:
    view = None if given.view is None else view_data(given.view)
    return [given.operand, list(given.path), given.again, view]


def _given_from(data: Data) -> Given:
    operand, path, again, view = data
    return Given(operand, tuple(path), again, None if view is None else view_from(view))


def _source_data(source: Source) -> Data:
    if source is None or isinstance(source, int):
        return {"result": source}
    if isinstance(source, Detached):
        return {"detached": source.position}
    if isinstance(source, Given):
        return {"given": _given_data(source)}
    target = source.wrapped
    numbers: tuple[Any, ...] = (*target.shape, *target.stride)
    if source.sizes or source.carried or not all(type(number) is int for number in numbers):
        raise NotSavedError("it makes tensors that wrap others, of open sizes or with objects")
    return {
        "made": {
            "structure": structure_data(target.structure, spec_data),
            "shape": list(target.shape),
            "stride": list(target.stride),
            "parts": list(map(_source_data, source.sources)),
        }
    }


def _source_from(data: Data, meshes: Meshes) -> Source:
    ((kind, value),) = data.items()
    if kind == "result":
        return value  # type: ignore[no-any-return]
    if kind == "detached":
        return Detached(value)
    if kind == "given":
        return _given_from(value)
    structure = structure_from(value["structure"], spec_from, meshes)
    parts = tuple(_source_from(part, meshes) for part in value["parts"])
    shape, stride = tuple(value["shape"]), tuple(value["stride"])
    return Made(Wrapped(structure, shape, stride, len(parts), ()), parts)
