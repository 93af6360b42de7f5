"""Programs in a file: ``compiled`` saves its entries and finds those of another process."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot._torch.distributed.collectives import place_in
from funcaot._torch.dynamo.dynamo import without_dynamo
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.pytree import tree_unflatten
from funcaot.aot.closure.libraries.put_into_torch import put_into_torch
from funcaot.aot.graph.made_under import settings_now
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.runtime.entry import Entry, make_entry, make_general_entry
from funcaot.aot.saved import file
from funcaot.aot.saved.codec import Blobs
from funcaot.aot.saved.environment import environment_from
from funcaot.aot.saved.errors import NotLoadedError, NotMadeYetError, NotSavedError
from funcaot.aot.saved.executables import Contents
from funcaot.aot.saved.forwards import (
    Remade,
    forward_data,
    forward_from,
    load_executables,
    settings_data,
    signature_data,
)
from funcaot.aot.saved.machine import difference, machine_data
from funcaot.aot.saved.open_sizes import Served, numbers_from, served_by, without_sizes
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.leaf_names import leaf_names
from funcaot.aot.signature.signature import Signature
from funcaot.aot.subclasses.structure import Structure

_LOG = logging.getLogger("funcaot.aot.compiled")  # The name that users know it by.


@dataclass(frozen=True)
class Saved:
    """What ``save`` wrote.

    Attributes:
        path: The file.
        programs: How many programs are in it.
        left_out: What isn't, and why: it is captured again in another process.
    """

    path: str
    programs: int
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A line, and one for each thing that was left out."""
        first = f"{self.path}: {self.programs} programs"
        return "\n".join([first, *(f"  left out: {each}" for each in self.left_out)])


class LoadedEntry(Entry):
    """A program that was saved.

    Attributes:
        source: The file that it is from.
    """

    def __init__(self, remade: Remade, settings: Settings, source: str, saved: SavedData) -> None:
        """Make what runs it."""
        super().__init__(remade.forward, settings)
        self.functions, self.in_place = remade.functions, remade.in_place
        self.source = source
        self.saved = saved
        known = {
            "premises": remade.derived.premises,
            "_unreached": remade.derived.unreached,
            "_used": remade.derived.used,
            "_retained": ((), ()),
            "_places": tuple((name, place_in(name)) for name in remade.groups),
        }
        self.__dict__.update(known)


@dataclass(frozen=True, eq=False)
class SavedData:
    """A program as a file has it, so that it can be saved again.

    Attributes:
        data: Its description.
        contents: The bytes that it names.
    """

    data: Any
    contents: Contents


def save(path: str | os.PathLike[str], entries: Sequence[Entry]) -> Saved:
    """Write programs to a file, of one function or of the units of a module.

    Raises:
        ArtifactError: If it can't be written or signed.
    """
    blobs, programs, left_out = Blobs(), [], []
    for entry in entries:
        try:
            program, parts = _data_of(entry, blobs)
        except NotSavedError as error:
            left_out.append(f"{entry.name}({entry.signature}): {error}")
            continue
        programs.append(program)
        left_out += parts
    content = {"machine": machine_data(), "programs": programs}
    file.write(path, content, blobs.content)
    return Saved(os.fspath(path), len(programs), tuple(left_out))


def _data_of(entry: Entry, blobs: Blobs) -> tuple[Any, list[str]]:
    if isinstance(entry, LoadedEntry):
        for content in entry.saved.contents.blobs.values():
            blobs.add(content)
        return entry.saved.data, []
    own = Blobs()
    found = forward_data(entry.forward, entry.derived, entry.functions, entry.in_place, own)
    for content in own.content.values():
        blobs.add(content)
    return found


class _File:
    """The programs of a file, by what their calls look like; they are read once.

    Attributes:
        known: The machine that they were made on.
    """

    def __init__(self, path: str) -> None:
        self.known: dict[str, Any] = {}
        self._path = path
        self._programs: dict[str, list[SavedData]] | None = None
        self._numbers: dict[str, Any] = {}

    def read(self) -> _File:
        """The same, with its programs."""
        if self._programs is None:
            data, contents = file.read(self._path)
            programs: dict[str, list[SavedData]] = {}
            for program in data["programs"]:
                described = program["signature"]
                exact = program["sizes"] is None
                key = json.dumps(described) if exact else without_sizes(described)
                programs.setdefault(key, []).append(SavedData(program, contents))
                if program["numbers"] is not None:
                    kinds = {key: program["numbers"][key] for key in ("kinds", "read")}
                    self._numbers[json.dumps(kinds)] = program["numbers"]
            self.known, self._programs = data["machine"], programs
        return self

    def alike(self, signature: Signature) -> list[SavedData]:
        """The programs that may serve a call, as far as its look says."""
        opened = [numbers_from(data) for data in self._numbers.values()]
        looks = [signature, *(found.signature(signature) for found in opened if found)]
        described = [signature_data(look) for look in looks if look is not None]
        keys = [key for data in described for key in (json.dumps(data), without_sizes(data))]
        programs = self._programs or {}
        return [each for key in keys for each in programs.get(key, ())]


class Artifacts:
    """A file of programs as a compiled function sees it: read when a call isn't known.

    Attributes:
        path: The file.
        why: Why the call that was looked for last isn't in it.
        is_first_step: Whether that is since an optimizer has yet to make its state, which eager
            does. Of each program this is said once.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read nothing yet; there needn't be such a file."""
        self.path = os.fspath(path)
        self.why = ""
        self.is_first_step = False
        self._waiting: set[SavedData] = set()
        self._file = _File(self.path)

    def for_another(self) -> Artifacts:
        """The same for another function, which looks in the same file; it is read once."""
        found = Artifacts(self.path)
        found._file = self._file
        return found

    def find(
        self,
        function: Callable[..., Any],
        signature: Signature,
        leaves: Sequence[Any],
        settings: Settings,
    ) -> tuple[Entry, tuple[torch.Tensor, ...]] | None:
        """The program of a call and the tensors that it closes over now; None with ``why``."""
        self.is_first_step = False
        try:
            found = self._found(function, signature, leaves, settings)
        except (NotLoadedError, NotSavedError) as error:
            self.why = f"{self.path} doesn't serve this call: {error}"
            _LOG.info("%s: %s", settings.name, self.why)
            return None
        self.why, self.is_first_step = "", False
        return found

    def _found(
        self,
        function: Callable[..., Any],
        signature: Signature,
        leaves: Sequence[Any],
        settings: Settings,
    ) -> tuple[Entry, tuple[torch.Tensor, ...]]:
        content = self._file.read()
        change = difference(content.known, machine_data())
        if change:
            raise NotLoadedError(change)
        # What was made for these very sizes and numbers comes first, as in the cache.
        alike = content.alike(signature)
        wanted = settings_data(settings)
        reason = NotLoadedError("no call that looks like it was saved")
        for saved in alike:
            if saved.data["settings"] != wanted:
                continue
            try:
                return self._entry(saved, function, signature, leaves, settings)
            except NotLoadedError as error:
                if isinstance(error, NotMadeYetError) and saved not in self._waiting:
                    self._waiting.add(saved)
                    self.is_first_step = True
                reason = error
        raise reason

    def _entry(
        self,
        saved: SavedData,
        function: Callable[..., Any],
        signature: Signature,
        leaves: Sequence[Any],
        settings: Settings,
    ) -> tuple[Entry, tuple[torch.Tensor, ...]]:
        now = {**settings_now(settings.compiler.name), "functions of torch": put_into_torch()}
        change = difference(saved.data["made under"], now)
        if change:
            raise NotLoadedError(change)
        served = served_by(saved.data, signature)
        names = leaf_names(function, signature.tree)
        environment = environment_from(saved.data, function, list(leaves), settings.numbers, names)
        plain = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

        def capture() -> Entry:
            opened = served_by(saved.data, signature, traces=True)
            again = replace(settings, numbers=environment.numbers)
            return _captured(function, signature, plain, again, opened)

        remade = forward_from(saved.data, served, environment, saved.contents, settings, capture)
        load_executables(remade)
        entry = LoadedEntry(remade, settings, self.path, saved)
        lifted = entry.lifted(function, leaves)
        if lifted is None:
            raise NotLoadedError(entry.explain(function, leaves))
        if not entry.fits(leaves, lifted):
            raise NotLoadedError("inputs share memory otherwise")
        return entry, lifted


def _captured(
    function: Callable[..., Any],
    signature: Signature,
    plain: Sequence[Any],
    settings: Settings,
    served: Served,
) -> Entry:
    """Capture a call that a saved program serves, on tensors that look like its own."""
    kinds = iter(signature.kinds)
    leaves: list[Any] = [
        _like(described, next(kinds)) if isinstance(described, TensorSpec) else leaf
        for leaf, described in zip(plain, signature.leaves, strict=True)
    ]
    for first, position in signature.repeats:
        leaves[position] = leaves[first]
    call = tree_unflatten(leaves, signature.tree)
    with settings.lock, StateKept(), without_dynamo():
        if served.sizes is not None or served.numbers is not None:
            given = leaves if served.numbers is None else served.numbers.leaves(leaves)
            opening = Opening(served.signature, given, served.sizes, served.numbers)
            entry, _ = make_general_entry(function, opening, leaves, call, settings)
        else:
            entry, _ = make_entry(function, signature, leaves, call, settings)
        entry.capture.tape.forget_values()
    return entry


def _like(spec: TensorSpec, kind: type) -> torch.Tensor:
    if spec.structure is not None:
        return _wrapper_like(spec, spec.structure)
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    if issubclass(kind, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=spec.requires_grad)
    return made.requires_grad_(spec.requires_grad)


def _wrapper_like(spec: TensorSpec, structure: Structure) -> torch.Tensor:
    parts = [_like(inner, torch.Tensor) for inner in structure.inner]
    return structure.made_of(parts, spec.shape, spec.stride).requires_grad_(spec.requires_grad)
