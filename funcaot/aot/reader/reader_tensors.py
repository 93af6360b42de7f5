"""Writes what a reader does with tensors: those that a program reads, and those beside them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.closure.where import text_of
from funcaot.aot.reader.reader_source import LARGE, EnvironmentWriter
from funcaot.aot.reader.reader_untouched import unless_untouched
from funcaot.errors import UnsupportedError


class UnknownTensorError(UnsupportedError):
    """A program uses or returns a tensor from nowhere; the forward of a node may have made it."""


def write_unread_tensors(writer: EnvironmentWriter, tensors: Sequence[torch.Tensor]) -> None:
    """Code may look whether a tensor is there without an op on it."""
    read = {id(tensor) for tensor in tensors}
    kind = writer.source.constant(torch.Tensor, "T")
    environment = writer.environment
    compared = _write_containers_of_tensors(writer)
    for identity, thing in environment.objects.items():
        if isinstance(thing, torch.Tensor) and identity not in read:
            for place in environment.places[identity]:
                if environment.is_read(place) and place.parent not in compared:
                    says = f"{text_of(environment, place)} is a tensor"
                    writer.require(f"isinstance({writer.at(place)}, {kind})", says)


def write_absent_of_tensors(writer: EnvironmentWriter) -> None:
    """Names that code looks for on tensors, whichever these are in a call."""
    environment = writer.environment
    names = environment.names
    for identity, thing in environment.objects.items():
        if not isinstance(thing, torch.Tensor):
            continue
        everything = names.reads_everything or names.reads_own(thing)
        if everything and environment.places[identity]:
            known = writer.source.constant({*attributes_of(thing)}, "names")
            look = writer.source.constant(attributes_of, "attributes_of")
            at = writer.at(environment.places[identity][0])
            says = f"the names of the attributes of {writer.says(identity)}"
            writer.require(f"{look}({at}).keys() == {known}", says)
        if not names.asks(thing):
            continue
        absent = names.asked_for - vars(thing).keys()
        if absent and environment.places[identity]:
            known = writer.source.constant(frozenset(absent), "names")
            at = writer.at(environment.places[identity][0])
            says = f"{writer.says(identity)} has none of its own of the names that are asked for"
            writer.require(f"{at}.__dict__.keys().isdisjoint({known})", says)


def _write_containers_of_tensors(writer: EnvironmentWriter) -> set[int]:
    """Of large containers of nothing but tensors, all items at once; which those are."""
    found = set()
    left_out = writer.environment.unread | writer.environment.namespaces.keys()
    for identity, thing in list(writer.environment.objects.items()):
        if type(thing) not in (list, tuple, dict) or len(thing) < LARGE or identity in left_out:
            continue
        if not any(map(writer.environment.is_read, writer.environment.places[identity])):
            continue
        kinds = {*map(type, thing.values() if type(thing) is dict else thing)}
        if not all(map(_is_tensor_type, kinds)):
            continue
        name = writer.variable(identity)
        items = f"{name}.values()" if type(thing) is dict else name
        known = writer.source.constant({*kinds, torch.Tensor}, "kinds")
        condition = f"{{*map(type, {items})}} <= {known}"
        if type(thing) is dict:
            condition = unless_untouched(writer, name, thing, condition)
        writer.require(condition, f"{writer.says(identity)} is full of tensors")
        found.add(identity)
    return found


def require_argument(writer: EnvironmentWriter, identity: int, position: int) -> None:
    """A tensor that is an argument and closed over is both in every call."""
    for place in writer.environment.places[identity]:
        says = f"{text_of(writer.environment, place)} is an argument"
        writer.require(f"{writer.at(place)} is root[{position}]", says)


def write_tensor(writer: EnvironmentWriter, tensor: torch.Tensor, name: str) -> str:
    """Read a closed-over tensor; it is shared where it was."""
    places = writer.environment.places.get(id(tensor))
    if not places:
        raise UnknownTensorError(
            f"{name} uses a tensor ({list(tensor.shape)}, {tensor.dtype}) that isn't an "
            "argument and wasn't found in its closure, its globals or its modules. A Function that "
            "runs on real values may have stored it.",
            remedy="pass it as an argument; fullgraph=False runs such calls as they are.",
        )
    variable = writer.source.name("t")
    writer.line(f"{variable} = {writer.at(places[0])}")
    for place in places[1:]:
        says = f"{text_of(writer.environment, place)} is the same tensor as before"
        writer.require(f"{writer.at(place)} is {variable}", says)
    return variable


def _is_tensor_type(kind: type) -> bool:
    return issubclass(kind, torch.Tensor)
