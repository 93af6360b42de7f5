"""What a program reads and stores beside tensors, as data; and found again in another process."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.distributed.groups import found_group
from funcaot.aot.capture.grad_effects import GradientEffects
from funcaot.aot.graph.settings import NumbersRead
from funcaot.aot.reader.named_numbers import NamedNumbers
from funcaot.aot.reader.reader import Reader, remade_reader
from funcaot.aot.saved.codec import Data, scalar_data, scalar_from
from funcaot.aot.saved.described import code_data, code_from, described, refuse_change
from funcaot.aot.saved.errors import NotLoadedError, NotSavedError, missing_is_not_loaded
from funcaot.aot.saved.whole_steps import gradients_from
from funcaot.aot.state.open_settings import OpenSettings
from funcaot.aot.state.state_effects import Change, Site, StateEffects, Stored
from funcaot.aot.state.state_tracker import StateTracker

_NUMBERS: dict[str, type] = {"float": float, "int": int, "bool": bool}


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a saved program has in this process.

    Attributes:
        reader: Reads it again at each call; None if it reads nothing.
        state: What its calls store.
        gradients: What its calls do to ``.grad`` and to optimizers.
        numbers: What a capture of it leaves open again.
        tensors: The tensors that it closes over.
    """

    reader: Reader | None = None
    state: StateEffects | None = None
    gradients: GradientEffects | None = None
    numbers: NumbersRead = field(default_factory=NumbersRead)
    tensors: tuple[torch.Tensor, ...] = ()


def reader_data(reader: Reader | None, state: StateEffects | None) -> Data:
    """What a program reads, and what it stores in.

    Raises:
        NotSavedError: If a part of it has no description.
    """
    if reader is None:
        if state is not None:
            raise NotSavedError("it stores something, and reads nothing")
        return None
    return {
        **code_data(reader),
        "keys": [list(key) for key in reader.keys],
        "numbers": _numbers_data(reader.numbers),
        "lines": described(reader),
        "stored": None if state is None else _stored_data(state),
    }


def environment_from(
    data: Data,
    function: Callable[..., Any],
    leaves: list[Any],
    known: NumbersRead,
    names: Sequence[str],
) -> Surroundings:
    """What a saved program reads, stores and steps, as this process has it.

    Args:
        data: The program.
        function: The function.
        leaves: Flat leaves of a call.
        known: Numbers that the function reads, which are noted there.
        names: How each leaf is called.

    Raises:
        NotLoadedError: If the environment isn't the one that the program was made for.
    """
    reader, tensors, state, again = _read(data["reader"], function, leaves, known, names)
    gradients = gradients_from(data["gradients"], reader, tensors, leaves)
    return Surroundings(reader, state, gradients, again, tensors)


def _read(
    data: Data,
    function: Callable[..., Any],
    leaves: list[Any],
    known: NumbersRead,
    names: Sequence[str],
) -> tuple[Reader | None, tuple[torch.Tensor, ...], StateEffects | None, NumbersRead]:
    if data is None:
        return None, (), None, NumbersRead(may_be_open=True)
    stored = None if data["stored"] is None else _stored_from(data["stored"])
    with missing_is_not_loaded():
        ran = code_from(data)
        given = frozenset(map(id, leaves))  # Whoever saved it has captured it so.
        tracker = StateTracker(
            function,
            leaves,
            ((), {}),
            "the function",
            ran=ran,
            as_they_are=given,
            open=OpenSettings(known),
            names=names,
        )
        tracker.root = (function, *[leaves[index] for index in tracker.holders()])
        keys = [tuple(key) for key in data["keys"]]
        numbers = _numbers_from(data["numbers"])
        reader, tensors, state = remade_reader(tracker, keys, numbers, stored)
        now = described(reader)
    refuse_change(data["lines"], now)
    tracker.open.note(tracker.environment)
    return reader, tensors, state, tracker.open.again(reads=numbers.reads)


# --- groups of ranks ------------------------------------------------------------------------------


def groups_from(data: Data, reader: Reader | None) -> tuple[str, ...]:
    """The names that the groups of ranks have in this process that a program waits for.

    Args:
        data: The program.
        reader: The reader that was made here.

    Raises:
        NotLoadedError: If there is no such group; or if it is called otherwise than it was, and the
            function may have its name from a text.
    """
    with missing_is_not_loaded():
        found = tuple(map(found_group, data["groups"]))
    for name, now in zip(data["named"], found, strict=True):
        if name != now and _is_spelled(name, data, reader):
            raise NotLoadedError(f"it may name a group by the text {name!r}, which is {now!r} now")
    return found


def _is_spelled(name: str, data: Data, reader: Reader | None) -> bool:
    """Whether a text is among what a program is given and reads, or in its code."""
    if reader is None:
        return True
    given = [leaf["constant"][1] for leaf in data["signature"]["leaves"] if "constant" in leaf]
    read = any(repr(name) in line for line in data["reader"]["lines"])
    codes = () if reader.ran is None else [code for code, _ in reader.ran.users]
    return read or name in given or any(name in _texts(code) for code in codes)


def _texts(constant: Any) -> set[str]:
    """The texts among the constants of code."""
    if isinstance(constant, str):
        return {constant}
    parts = constant.co_consts if isinstance(constant, types.CodeType) else constant
    if not isinstance(parts, tuple | frozenset):
        return set()
    return {text for part in parts for text in _texts(part)}


# --- numbers that are left open -------------------------------------------------------------------


def _numbers_data(numbers: NamedNumbers) -> Data:
    if numbers.untold:
        raise NotSavedError("it leaves a number open whose place has no name of its own")
    return {
        "opened": scalar_data(numbers.opened),
        "fixed": sorted(numbers.fixed),
        "steps": [list(step) for step in numbers.steps.items()],
        "answers": [list(answer) for answer in numbers.answers.items()],
        "computed": list(numbers.computed),
        "lifted": [[position, name] for position, name in numbers.lifted.items()],
        "reads": numbers.reads,
    }


def _numbers_from(data: Data) -> NamedNumbers:
    return NamedNumbers(
        scalar_from(data["opened"]),
        frozenset(data["fixed"]),
        dict(data["steps"]),
        dict(data["answers"]),
        tuple(data["computed"]),
        dict(data["lifted"]),
        data["reads"],
    )


# --- what is stored -------------------------------------------------------------------------------


def _stored_data(state: StateEffects) -> Data:
    if state.kept:
        raise NotSavedError("it returns or stores a container that was there before")
    return {
        "changes": [_change_data(change) for change in state.changes],
        "sites": [_site_data(site) for site in state.sites],
        "in_arguments": [
            [scalar_data(path), _change_data(change)] for path, change in state.in_arguments
        ],
        "read_off": [[position, kind.__name__] for position, kind in state.read_off],
        "returned": scalar_data(state.returned),
        "written": scalar_data(state.written),
    }


def _stored_from(data: Data) -> Stored:
    return Stored(
        tuple(map(_change_from, data["changes"])),
        tuple(map(_site_from, data["sites"])),
        tuple((scalar_from(path), _change_from(change)) for path, change in data["in_arguments"]),
        tuple((position, _NUMBERS[kind]) for position, kind in data["read_off"]),
        scalar_from(data["returned"]),
        scalar_from(data["written"]),
    )


def _site_data(site: Site) -> Data:
    if site.key is None:
        raise NotSavedError("it stores something where its code doesn't lead")
    names = None if site.names is None else sorted(site.names)
    return [list(site.key), site.access, names, site.named]


def _site_from(data: Data) -> Site:
    key, access, names, named = data
    return Site(tuple(key), access, None if names is None else frozenset(names), named)


def _change_data(change: Change) -> Data:
    return [
        change.path,
        scalar_data(change.assigned),
        list(change.added),
        scalar_data(change.contents),
        change.compared,
        scalar_data(change.counted),
        [scalar_data(key) for key in change.made_of_old],
        scalar_data(change.computed),
        [scalar_data(key) for key in change.left_open],
    ]


def _change_from(data: Data) -> Change:
    path, assigned, added, contents, compared, counted, made_of_old, computed, left_open = data
    return Change(
        path,
        scalar_from(assigned),
        tuple(added),
        scalar_from(contents),
        compared,
        scalar_from(counted),
        frozenset(map(scalar_from, made_of_old)),
        scalar_from(computed),
        frozenset(map(scalar_from, left_open)),
    )
