"""The generated function that reads a function's environment again at each call.

It fetches the tensors that the function closes over from where they were found, and returns None
when something that decides what the function does has changed: a module was replaced, switched
between training and evaluation or got a hook, a setting has another value, a tensor is shared
where it wasn't. Nothing found in the environment is kept alive: objects are compared through weak
references.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.aot.closure.children import has_tensors_as_keys
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.named.given import Given
from funcaot.aot.closure.ran import Ran
from funcaot.aot.closure.ran_code import RanCode, kept
from funcaot.aot.closure.walk import scan_what_ran
from funcaot.aot.closure.where import Key, key_of, objects_at, path_of, places_of_tensors, words_of
from funcaot.aot.reader.leaks import warn_of_leaks
from funcaot.aot.reader.named_numbers import NamedNumbers, named_numbers
from funcaot.aot.reader.reached_tensors import ReachedTensors, reached_tensors
from funcaot.aot.reader.reader_changes import (
    given_by,
    kept_by,
    kept_things,
    read_first,
    write_changed,
    write_counted,
    write_kind,
    write_moved,
)
from funcaot.aot.reader.reader_code import Explanation
from funcaot.aot.reader.reader_identity import (
    containers_read,
    write_assigned,
    write_distinct,
    write_functions_of_modules,
    write_identities,
    write_shared,
)
from funcaot.aot.reader.reader_numbers import (
    arguments_needed,
    take_out,
    tensor_of,
    write_numbers,
)
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.reader.reader_tensors import (
    require_argument,
    write_absent_of_tensors,
    write_tensor,
    write_unread_tensors,
)
from funcaot.aot.reader.reader_untouched import write_kept_as
from funcaot.aot.state.advancing import refuse_iterators
from funcaot.aot.state.state import Bag, bag_at
from funcaot.aot.state.state_effects import Site, StateEffects, Stored
from funcaot.aot.state.state_tracker import StateTracker
from funcaot.errors import UnsupportedError


class ReachedArgumentError(UnsupportedError):
    """A function that asks by ``is`` saw two tensors in the place of one.

    Attributes:
        arguments: Arguments that it also reaches, by ``id``.
    """

    arguments: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads a function's environment.

    Attributes:
        read: Takes ``(function, *leaves)``, the leaves being those at ``positions``, and returns
            the closed-over tensors, or None if the environment isn't as it was.
        why: Takes the same and says what has changed; empty if nothing has.
        positions: Leaves of the arguments that belong to the environment: objects that hold
            tensors or settings, tensors that are also reached otherwise, and numbers of which
            something is computed.
        checks: What is compared, a line each.
        ran: The code that ran, from which a reader is made again in another process.
        keys: Where each of the closed-over tensors was found.
        names: The same as one would write it.
        leaves_open: Numbers that may be others in each call, as `NumbersRead` names them.
        reached: Finds the tensors that were closed over whatever else is as it was.
        optimizers: Those that the code that ran leads to, by where they were found.
        numbers: The numbers that may be others in each call, by where they were found.
        reached_otherwise: Tensors among the leaves of the arguments that are also closed over.
    """

    read: Callable[[tuple[Any, ...]], tuple[torch.Tensor, ...] | None]
    why: Explanation
    positions: tuple[int, ...]
    checks: tuple[str, ...] = ()
    ran: RanCode | None = None
    keys: tuple[Key, ...] = ()
    names: tuple[str, ...] = ()
    leaves_open: frozenset[tuple[Any, Any]] = frozenset()
    reached: ReachedTensors | None = None
    optimizers: tuple[tuple[Key, weakref.ref[torch.optim.Optimizer]], ...] = ()
    numbers: NamedNumbers = field(default_factory=NamedNumbers)
    reached_otherwise: tuple[int, ...] = ()

    def __call__(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """Read, for a call with these flat leaves."""
        return self.read((function, *[leaves[index] for index in self.positions]))

    def explain(self, function: Callable[..., Any], leaves: Sequence[Any]) -> str:
        """What isn't as it was; empty if everything is."""
        return self.why((function, *[leaves[index] for index in self.positions]))


def make_reader(
    tracker: StateTracker, tensors: Sequence[torch.Tensor]
) -> tuple[Reader | None, StateEffects | None]:
    """Generate the reader of a function that was just captured.

    Args:
        tracker: The function, the flat leaves of the call, and what the function stores.
        tensors: Closed-over tensors to read.

    Returns:
        The reader, or None if there is nothing to read or to compare; and what a call stores.

    Raises:
        UnsupportedError: If a tensor can't be found.
    """
    leaves, name = tracker.leaves, tracker.name
    root = tracker.root
    given = given_by(tracker)
    environment = _scanned(root, leaves, tracker.ran, given)
    if tracker.names:
        environment.given = {id(leaf): tracker.names[at] for at, leaf in _holders(tracker)}
    if environment.escaped:
        raise SizeError(
            f"{name} keeps a size of its arguments for itself.",
            remedy="compile with dynamic=False.",
        )
    refuse_iterators(environment, name, tracker.resting)
    warn_of_leaks(environment, name)
    environment.alike = tracker.environment.alike = tracker.alike(environment)
    settings = [*environment.settings, *_compared_settings(tracker, environment)]
    numbers = named_numbers(tracker, environment, settings, tensors)
    writer, values, positions = _written(environment, tracker, tensors)
    _write_changed(writer, tracker)
    write_assigned(writer, given, kept_by(tracker), {*map(id, tensors)})
    stored = None
    if any((tracker.found, tracker.in_arguments, tracker.kept, tracker.returned, tracker.written)):
        sites = tuple(_site(environment, bag) for bag, _ in tracker.found)
        stored, reached = _stored(tracker, environment, positions, sites)
        write_distinct(writer, reached)
    else:
        write_distinct(writer)
    tracker.open.close(environment, _compared_settings(tracker, environment))
    if not values and not writer.checks:
        return None, stored
    reader = _reader(writer, values, positions, tensors)
    found = reached_tensors(environment, root, positions, tensors)
    left_open = tracker.open.left_open
    known = {
        "leaves_open": left_open,
        "reached": found,
        "numbers": numbers,
        "reached_otherwise": _reached_otherwise(environment, leaves),
    }
    return replace(reader, **known), stored


def _reached_otherwise(environment: Environment, leaves: Sequence[Any]) -> tuple[int, ...]:
    return tuple(
        position
        for position, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and environment.places.get(id(leaf))
    )


def _write_changed(writer: EnvironmentWriter, tracker: StateTracker) -> None:
    for bag, change in tracker.found:
        if change.compared:
            write_changed(writer, bag, change)
        elif bag.is_container:
            write_kind(writer, bag)
        write_moved(writer, bag, change)
        if change.counted:
            write_counted(writer, bag, change)
    write_shared(writer, [bag.holder for bag, _ in tracker.found if bag.is_container])


def _compared_settings(tracker: StateTracker, environment: Environment) -> list[tuple[Place, Any]]:
    """The settings that the function gives new values, and that a call must find as they were."""
    compared = {bag.holder: change for bag, change in tracker.found if change.compared}
    return [
        (place, value)
        for place, value in (tracker.environment.settings if compared else ())
        if place.parent in compared
        and place.parent in environment.objects
        and not environment.is_set_first(place)
    ]


def _stored(
    tracker: StateTracker,
    environment: Environment,
    positions: tuple[int, ...],
    sites: tuple[Site, ...],
) -> tuple[StateEffects, list[int]]:
    """What a call stores, and the objects that it goes through for that, by ``id``."""
    finder = EnvironmentWriter(read_first(tracker.environment, environment), tracker.root)
    things = [finder.thing(bag) for bag, _ in tracker.found]
    things += kept_things(finder, tracker)
    if tracker.computed:
        write_numbers(finder, tracker.open, tracker.computed, positions)
    changed = [*finder.variables]
    around = _around(finder, environment) if tracker.in_arguments else []
    stored = StateEffects(
        tracker.function,
        tuple(change for _, change in tracker.found),
        finder.build([*things, *around, *tracker.computed]),
        positions,
        tracker.in_arguments,
        tuple(None if isinstance(at, Bag | Place) else at for at in tracker.kept),
        len(around),
        len(tracker.computed),
        sites,
        tracker.read_off,
        tracker.returned,
        tracker.written,
    )
    return stored, changed


def _around(finder: EnvironmentWriter, environment: Environment) -> list[str]:
    """The expressions of containers that code reads, for what finds them in a call."""
    known = finder.environment.places
    both = [
        [place for place in places if place in known.get(identity, ())]
        for identity, places in containers_read(environment).items()
    ]
    return [finder.at(places[0]) for places in both if places]


def _site(environment: Environment, bag: Bag) -> Site:
    key = key_of(environment, bag.holder) if bag.holder in environment.objects else None
    return Site(key, bag.access, bag.names, bag.named)


def remade_reader(
    tracker: StateTracker, keys: Sequence[Key], numbers: NamedNumbers, state: Stored | None = None
) -> tuple[Reader | None, tuple[torch.Tensor, ...], StateEffects | None]:
    """Generate the reader of a function that another process captured.

    Args:
        tracker: The function, the leaves of a call, and the code that ran there.
        keys: Where that process found the closed-over tensors.
        numbers: The numbers that the program leaves open.
        state: What a call stores, and where, if it does.

    Returns:
        The reader, as ``make_reader`` makes it, the tensors, and what a call stores.

    Raises:
        LookupError: If there is no tensor at some of these places; it says at which.
    """
    given = Given()
    if state is None:
        environment = _scanned(tracker.root, tracker.leaves, tracker.ran, given)
        tracker.environment = environment
    else:
        tracker.environment = _before(tracker)
        bags = [_bag(tracker.environment, site) for site in state.sites]
        tracker.found = tuple(zip(bags, state.changes, strict=True))
        tracker.in_arguments, tracker.computed = state.in_arguments, numbers.computed
        tracker.read_off, tracker.returned = state.read_off, state.returned
        tracker.written = state.written
        given = given_by(tracker)
        environment = _scanned(tracker.root, tracker.leaves, tracker.ran, given)
    if tracker.names:
        environment.given = {id(leaf): tracker.names[at] for at, leaf in _holders(tracker)}
    named = places_of_tensors(environment)
    settings = [*environment.settings, *_compared_settings(tracker, environment)]
    numbers.put_into(tracker.open, environment, settings)
    made = numbers.tensors(tracker.open)
    missing = [key for at, key in enumerate(keys) if at not in made and key not in named]
    if missing:
        raise LookupError(f"no tensor is at {words_of(missing[0])}")
    tensors = tuple(made[at] if at in made else named[key] for at, key in enumerate(keys))
    # What the program keeps for itself was compared by identity, and the two readers differ.
    environment.alike = tracker.environment.alike = tracker.alike(environment)
    writer, values, positions = _written(environment, tracker, tensors)
    _write_changed(writer, tracker)
    write_assigned(writer, given, frozenset(), {*map(id, tensors)})
    stored, reached = None, list[int]()
    if state is not None:
        stored, reached = _stored(tracker, environment, positions, state.sites)
    write_distinct(writer, reached)
    if not values and not writer.checks:
        return None, tensors, stored
    reader = _reader(writer, values, positions, tensors)
    reader = replace(reader, leaves_open=tracker.open.left_open, numbers=numbers)
    return reader, tensors, stored


def _holders(tracker: StateTracker) -> list[tuple[int, Any]]:
    return [(at, tracker.leaves[at]) for at in tracker.holders()]


def _bag(environment: Environment, site: Site) -> Bag:
    """The thing at a site in this process, with what is in it now.

    Raises:
        LookupError: If there is none.
    """
    holder = None if site.key is None else objects_at(environment).get(site.key)
    bag = None if holder is None else bag_at(holder, site.access, site.names, named=site.named)
    if bag is None:
        raise LookupError("something that it stores in isn't where it was")
    return bag


def _before(tracker: StateTracker) -> Environment:
    """What a walk before a capture would find, numbers that code only assigns among it."""
    texts = [leaf for leaf in tracker.leaves if type(leaf) is str]
    return scan_what_ran(tracker.root, tracker.ran, texts, assigned_too=True)


def _scanned(
    root: tuple[Any, ...],
    leaves: Sequence[Any],
    ran: Ran,
    given: Given,
) -> Environment:
    return scan_what_ran(root, ran, [leaf for leaf in leaves if type(leaf) is str], given)


def _written(
    environment: Environment, tracker: StateTracker, tensors: Sequence[torch.Tensor]
) -> tuple[EnvironmentWriter, list[str], tuple[int, ...]]:
    """Write what is compared; the expressions of the tensors, and the leaves that belong to it."""
    leaves, root = tracker.leaves, tracker.root
    environment.names.compares_identity |= has_tensors_as_keys(environment.objects.values())
    asks = environment.names.compares_identity
    reached = {
        id(leaf): index
        for index, leaf in reversed(list(enumerate(leaves)))
        if isinstance(leaf, torch.Tensor) and (asks or environment.places.get(id(leaf)))
    }
    if asks:
        _refuse_reached(environment, _seen_twice(tracker, reached), tracker.name)
    take_out(environment, tracker.open)
    writer = EnvironmentWriter(environment, root)
    writer.write_checks()
    arguments = []
    for offset, identity in enumerate(reached):
        if environment.places.get(identity):
            require_argument(writer, identity, len(root) + offset)
        else:
            arguments.append(f"root[{len(root) + offset}]")
    made = tracker.open.log.tensors
    computed = [made[id(tensor)][1] for tensor in tensors if id(tensor) in made]
    computed += tracker.computed
    given = arguments_needed(tracker.open, computed)
    positions = (*tracker.holders(), *reached.values(), *given)
    if tracker.open.opened or given:
        write_numbers(writer, tracker.open, computed, positions)
    values = [
        tensor_of(writer, made[id(tensor)][1])
        if id(tensor) in made
        else write_tensor(writer, tensor, tracker.name)
        for tensor in tensors
    ]
    write_unread_tensors(writer, tensors)
    write_absent_of_tensors(writer)
    if tracker.ran.users:
        parameters = any(isinstance(leaf, torch.nn.Parameter) for leaf in leaves)
        write_identities(writer, arguments, parameters=parameters)
    write_functions_of_modules(writer)
    write_kept_as(writer)
    return writer, values, positions


def _seen_twice(tracker: StateTracker, reached: dict[int, int]) -> dict[int, int]:
    """Arguments that the function sees as arguments, and as other tensors than it reaches."""
    hidden = getattr(tracker.function, "funcaot_reaches", 0)
    return {
        identity: index
        for identity, index in reached.items()
        if index >= hidden and identity not in tracker.as_they_are
    }


def _refuse_reached(environment: Environment, arguments: Container[int], name: str) -> None:
    """Refuse a tensor that the function is given and also reaches, where its code asks by ``is``.

    It has seen two tensors; then it is captured again and sees one.

    Raises:
        ReachedArgumentError: If there is one.
    """
    found = [
        identity
        for identity, thing in environment.objects.items()
        if isinstance(thing, torch.Tensor)
        and identity in arguments
        and any(map(environment.is_read, environment.places[identity]))
    ]
    if found:
        error = ReachedArgumentError(
            f"{name} asks which things are one object, and is called with a tensor that it also "
            f"reaches as {path_of(environment, found[0])}.",
            remedy="pass x.view_as(x), which is another tensor of the same memory, or keep one "
            "tensor from being both.",
        )
        error.arguments = frozenset(found)
        raise error


def _reader(
    writer: EnvironmentWriter,
    values: Sequence[str],
    positions: tuple[int, ...],
    tensors: Sequence[torch.Tensor],
) -> Reader:
    environment = writer.environment
    return Reader(
        writer.build(values),
        writer.explanation(),
        positions,
        tuple(writer.checks),
        None if environment.ran is None else kept(environment.ran),
        tuple(key_of(environment, id(tensor)) for tensor in tensors),
        tuple(
            path_of(environment, id(tensor)) if id(tensor) in environment.places else "a number"
            for tensor in tensors
        ),
        optimizers=tuple(
            (key_of(environment, identity), weakref.ref(thing))
            for identity, thing in environment.objects.items()
            if isinstance(thing, torch.optim.Optimizer)
        ),
    )


class Rules:
    """Says whether what rules of derivatives read is as it was when they ran.

    Attributes:
        reader: Reads it.
        root: Something that stands for a function, and what Functions kept.
    """

    def __init__(self, reader: Reader, root: tuple[Any, ...]) -> None:
        """Compare what a reader reads that was made for a root."""
        self.reader = reader
        self.root = root

    def __call__(self) -> bool:
        """Read it again."""
        return self.reader.read(self.root) is not None


def make_check(ran: Ran, kept: Sequence[Any] = ()) -> Rules | None:
    """Whether what some code reads is as it is now: of derivatives, whose rules ran when traced.

    Args:
        ran: The code.
        kept: Objects that Functions kept for it.

    Returns:
        None if no code of the user's ran, or it reads nothing.
    """
    if not ran.users:
        return None
    root = (object(),)
    writer = _checks_of(ran, root)
    # Of most objects the code reads nothing that others may change.
    if kept and len((more := _checks_of(ran, (*root, *kept))).checks) > len(writer.checks):
        writer, root = more, (*root, *kept)
    return Rules(_reader(writer, (), (), ()), root) if writer.checks else None


def _checks_of(ran: Ran, root: tuple[Any, ...]) -> EnvironmentWriter:
    writer = EnvironmentWriter(scan_what_ran(root, ran), root)
    writer.write_checks()
    write_identities(writer)
    write_kept_as(writer)
    return writer
