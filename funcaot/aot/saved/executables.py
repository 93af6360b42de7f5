"""Compiled graphs as data: what Inductor generated, with what the graph promises of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import fx

from funcaot._torch.distributed.described_tensors import Meshes
from funcaot._torch.inductor.generated import Generated, GeneratedError, made, taken_apart
from funcaot.aot.graph.layout import Layout, Restriding, checking
from funcaot.aot.lowering.contract import Contract, Executable, Result
from funcaot.aot.lowering.lower import Lowered
from funcaot.aot.lowering.wrappers import Around, Detached, Given, Made, Outside, Source
from funcaot.aot.saved.codec import (
    Blobs,
    Data,
    scalar_data,
    scalar_from,
    spec_data,
    spec_from,
    tensor_from,
    view_data,
    view_from,
)
from funcaot.aot.saved.errors import (
    NotLoadedError,
    NotSavedError,
    missing_is_not_loaded,
    missing_is_not_saved,
)
from funcaot.aot.saved.graphs import graph_data, graph_from
from funcaot.aot.subclasses.distributed import structure_data, structure_from
from funcaot.aot.subclasses.nodes import Wrapped
from funcaot.backends import eager


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file holds beside its data.

    Attributes:
        blobs: Bytes by digest.
        library: Where the library of a digest lies on this machine.
        groups: The names that this process has for the groups of ranks that a program waits for.
        meshes: Meshes that this process has given to the program, by what is said of them.
    """

    blobs: Mapping[str, bytes]
    library: Callable[[str], Path]
    groups: tuple[str, ...] = ()
    meshes: Meshes = field(default_factory=dict)


def executable_data(lowered: Lowered, blobs: Blobs) -> Data:
    """A compiled graph.

    Raises:
        NotSavedError: If it isn't one that Inductor generated for a CPU.
    """
    executable, changes, around, layouts = lowered.trusting, (), None, lowered.layouts
    if isinstance(executable, Around):
        layouts = executable.layouts
        executable, around = executable.run, _outside_data(executable.outside)
    if isinstance(executable, Restriding):
        executable, changes = executable.run, executable.changes
    if not isinstance(executable, Executable):
        raise NotSavedError("what was compiled isn't called by itself")
    run, contract, settles = executable.parts
    data = {
        "contract": _contract_data(contract),
        "settles": settles,
        "compiler": lowered.compiler,
        "layouts": None if layouts is None else layouts_data(layouts),
        "around": around,
        "restrided": [[place, *layouts_data([layout])] for place, layout in changes],
    }
    if lowered.compiler == "eager":
        return {**data, "graph": graph_data(lowered.module, blobs)}
    if lowered.compiler != "inductor":
        raise NotSavedError(f"a graph was compiled by {lowered.compiler}")
    try:
        generated = taken_apart(run)
    except (GeneratedError, OSError, UnicodeDecodeError) as error:
        raise NotSavedError(str(error)) from error
    return {
        **data,
        "text": generated.text,
        "kernels": {name: list(place) for name, place in generated.kernels.items()},
        "libraries": [blobs.add(content) for content in generated.libraries.values()],
        "constants": {name: blobs.tensor(value) for name, value in generated.constants.items()},
        "groups": {name: blobs.group(group) for name, group in generated.groups.items()},
    }


def executable_from(data: Data, contents: Contents, what: str) -> Lowered:
    """Make a compiled graph runnable.

    Args:
        data: What ``executable_data`` made.
        contents: The rest of the file, whose code the caller trusts.
        what: The graph, for messages.

    Raises:
        NotLoadedError: If this torch can't run it.
    """
    run: Callable[[list[Any]], Sequence[Any]]
    if "graph" in data:
        module = graph_from(data["graph"], contents.blobs, contents.groups)
        run = eager.COMPILER.compile(module, [], "forward")
    else:
        constants = {
            name: tensor_from(value, contents.blobs) for name, value in data["constants"].items()
        }
        kernels = {name: (library, entry) for name, (library, entry) in data["kernels"].items()}
        try:
            named = data.get("groups", {}).items()
            groups = {name: contents.groups[number] for name, number in named}
            generated = Generated(data["text"], kernels, {}, constants, groups)
            run = made(generated, contents.library)
        except (GeneratedError, OSError, ImportError, AttributeError) as error:
            raise NotLoadedError(f"{what} can't be run here: {error}") from error
    executable = Executable(run, _contract_from(data["contract"]), settles=data["settles"])
    layouts: Any = None if data["layouts"] is None else layouts_from(data["layouts"])
    checked: Any = executable if layouts is None else checking(executable, layouts, what)
    trusting: Any = executable
    changes: list[Any] = [
        (place, *layouts_from([layout])) for place, layout in data.get("restrided", ())
    ]
    if changes:
        checked, trusting = Restriding(checked, changes), Restriding(trusting, changes)
    empty = fx.GraphModule({}, fx.Graph())  # Only what compiles reads it.
    lowered = Lowered(checked, trusting, empty, data["compiler"], layouts=layouts)
    around = data.get("around")
    return lowered if around is None else _outside_from(around, contents.meshes).around(lowered)


def layouts_data(layouts: Sequence[Layout | None]) -> Data:
    """Layouts as data; None where some size isn't a plain number."""
    numbers = [n for each in layouts if each is not None for n in (*each.shape, *each.stride)]
    if not all(type(number) is int for number in numbers):
        return None
    return [None if each is None else [list(each.shape), list(each.stride)] for each in layouts]


def layouts_from(data: Data) -> tuple[Layout | None, ...]:
    """The layouts that ``layouts_data`` described."""
    return tuple(each and Layout(tuple(each[0]), tuple(each[1])) for each in data)


def _contract_data(contract: Contract) -> Data:
    return {
        "what": contract.what,
        "operands": list(contract.operands),
        "results": [
            None if result is None else _result_data(result) for result in contract.results
        ],
        "symbols": [[position, scalar_data(symbol)] for position, symbol in contract.symbols],
        "written": sorted(contract.written),
    }


def _result_data(result: Result) -> Data:
    stride = None if result.stride is None else list(map(scalar_data, result.stride))
    dtype = None if result.dtype is None else scalar_data(result.dtype)
    return [result.node, result.memory, stride, result.private, result.offset, dtype]


def _contract_from(data: Data) -> Contract:
    return Contract(
        data["what"],
        tuple(data["operands"]),
        tuple(None if result is None else _result_from(result) for result in data["results"]),
        tuple((position, scalar_from(symbol)) for position, symbol in data["symbols"]),
        frozenset(data["written"]),
    )


def _result_from(data: Data) -> Result:
    node, memory, stride, private, offset, dtype = data
    stride = None if stride is None else tuple(map(scalar_from, stride))
    return Result(node, memory, stride, private, offset, scalar_from(dtype))


# --- around graphs whose caller has DTensors -----------------------------------------------------


def _outside_data(outside: Outside) -> Data:
    """What is taken out of operands and made of results.

    Raises:
        NotSavedError: If it makes anything but ``DTensor``s of known sizes.
    """
    return {
        "given": list(map(_given_data, outside.given)),
        "results": list(map(_source_data, outside.results)),
        "arity": outside.arity,
    }


def _outside_from(data: Data, meshes: Meshes) -> Outside:
    """The same for an executable of this process.

    Raises:
        NotLoadedError: If it makes a ``DTensor`` on a mesh that there isn't.
    """
    results = tuple(_source_from(each, meshes) for each in data["results"])
    return Outside(tuple(map(_given_from, data["given"])), results, data["arity"])


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
    with missing_is_not_saved():
        structure = structure_data(target.structure, spec_data)
    return {
        "made": {
            "structure": structure,
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
    with missing_is_not_loaded():
        structure = structure_from(value["structure"], spec_from, meshes)
    parts = tuple(_source_from(part, meshes) for part in value["parts"])
    shape, stride = tuple(value["shape"]), tuple(value["stride"])
    return Made(Wrapped(structure, shape, stride, len(parts), ()), parts)
