"""Running a function that is captured, and taking out of its state what it stored there."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.tensors.classes.own_functions import as_called
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tensors.sizes.called_kinds import kinds_called
from funcaot._torch.tensors.sizes.read_floats import reading
from funcaot._torch.tensors.sizes.written_numbers import mathematics
from funcaot._torch.tracing.tracing import is_untraceable
from funcaot.aot.closure.alike import alike, kept_in, keys_in, may_be_another, reached_by
from funcaot.aot.closure.children import LOOKED_INTO, reads_unseen
from funcaot.aot.closure.constants import is_scalar, is_setting
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.look import is_steps_own
from funcaot.aot.closure.outside.remembering import RememberedError, Remembering
from funcaot.aot.closure.outside.watching import Outside
from funcaot.aot.closure.ran import ImportedError, Ran, Recorder
from funcaot.aot.closure.running.closures import made_in
from funcaot.aot.closure.walk import Walk, scan_what_ran
from funcaot.aot.closure.where import path_of
from funcaot.aot.graph.settings import NumbersRead
from funcaot.aot.state import arguments, state
from funcaot.aot.state.advancing import Draws, refuse_iterators
from funcaot.aot.state.changed_by_hooks import HooksOfAllModules
from funcaot.aot.state.held import Held, refuse_counted
from funcaot.aot.state.of_functions import Acts, Everything, OfFunctions
from funcaot.aot.state.open_settings import OpenSettings
from funcaot.aot.state.optimizer_step import (
    FirstStepError,
    StateReadError,
    names_state,
    refuse_other_state,
)
from funcaot.aot.state.results.built_objects import Known, taken_apart
from funcaot.aot.state.results.plans import Parts
from funcaot.aot.state.results.returned_floats import Written, computed_in, read_off
from funcaot.aot.state.state import Bag
from funcaot.aot.state.state_changes import Changes, refuse_text
from funcaot.aot.state.state_effects import Call, Change
from funcaot.aot.state.torch_random import refuse_states
from funcaot.aot.subclasses.classes import Classes
from funcaot.classes.opaque import watching
from funcaot.errors import FuncaotError, UnsupportedError

# Their parts are compared, and not which objects they are.
_MADE_OF_OTHERS = (*LOOKED_INTO, functools.partial, types.MethodType)


class _Kept:
    """Containers that were there before a function ran, numbered as they are found in its value.

    Attributes:
        found: Those that were found: where they are.
        identities: Which objects these are, by ``id``.
        passed: Those among the arguments.
    """

    def __init__(
        self,
        bags: Sequence[Bag],
        given: Sequence[tuple[arguments.Path, Any, Any]],
        environment: Environment,
    ) -> None:
        self.found: list[Bag | Place | arguments.Path] = []
        self.identities: list[int] = []
        self.passed = [thing for _, thing, _ in given]
        self._places: dict[int, Bag | Place | arguments.Path] = {
            id(thing): place for place, thing in reversed(environment.arrays)
        }
        self._places.update(
            (identity, environment.places[identity][0])
            for identity, thing in environment.objects.items()
            if (isinstance(thing, _MADE_OF_OTHERS) or may_be_another(thing))
            and environment.places[identity]
        )
        self._places.update((id(bag.thing), bag) for bag in bags if bag.is_container)
        self._places.update(
            (id(thing), path)
            for path, thing, parts in given
            if parts is None or arguments.has_attributes(type(thing))
        )
        self._numbers: dict[int, int] = {}

    def number_of(self, thing: Any) -> int | None:
        """The number of a container; None for what isn't one of them."""
        place = self._places.get(id(thing))
        if place is None:
            return None
        number = self._numbers.setdefault(id(thing), len(self.found))
        if number == len(self.found):
            self.found.append(place)
            self.identities.append(id(thing))
        return number


@contextlib.contextmanager
def _once_outside(recorder: Recorder, remembering: Remembering) -> Iterator[None]:
    """Have a call that imports a module, or remembers something, made as it is: it does so once."""
    with contextlib.suppress(ImportedError, RememberedError):
        yield
    if recorder.imported:
        raise FirstStepError(f"imports {recorder.imported} for the first time")
    if remembering.once:
        raise FirstStepError(remembering.once)


@dataclass(eq=False)
class StateTracker:
    """Runs a function that is being captured and takes out what it stores.

    Attributes:
        function: The user's function.
        leaves: Flat leaves of the call.
        call: Its ``(args, kwargs)``.
        name: The user's function, for messages.
        found: What it changed; then it returns ``(result, values)``.
        in_arguments: What it changed in containers among the arguments, by path.
        kept: Containers that were there before and that it returns or stores: those that it
            reaches, and paths of those among the arguments.
        kept_identities: Which objects these are, by ``id``.
        environment: What it could reach before it ran.
        ran: The code that ran.
        root: What the environment is reached from: the function, and objects that it is given.
        names: What the caller calls the leaves.
        computed: Names of numbers that Python computes in each call, and that it stores.
        read_off: Which of the new values stand for numbers, and the classes of these.
        returned: Where in its result and in the new values tensors stand for floats.
        written: Where in its result and in the new values numbers are that Python computes.
        pinned: Objects that the program keeps for itself, by ``id``.
        keys: Keys of what it changes and makes.
        told: Texts and numbers that it returns and stores.
        as_they_are: Tensors among the leaves that the function sees as themselves, by ``id``: it
            reaches them otherwise too, and asks which things are one object.
        open: Numbers that the function reads besides its arguments, and that are left open.
        classes: Users' classes of tensors that it meets.
        reads_states: Whether code other than a step names the state of optimizers, which then is
            what dictionaries of other objects are.
    """

    function: Callable[..., Any]
    leaves: Sequence[Any]
    call: Call
    name: str
    found: tuple[tuple[Bag, Change], ...] = ()
    in_arguments: tuple[tuple[arguments.Path, Change], ...] = ()
    kept: tuple[Bag | Place | arguments.Path, ...] = ()
    kept_identities: tuple[int, ...] = ()
    environment: Environment = field(default_factory=Environment)
    ran: Ran = field(default_factory=Ran)
    root: tuple[Any, ...] = ()
    names: Sequence[str] = ()
    computed: tuple[str, ...] = ()
    read_off: tuple[tuple[int, type], ...] = ()
    returned: tuple[tuple[Any, ...], ...] = ()
    written: tuple[Written, ...] = ()
    pinned: frozenset[int] = frozenset()
    keys: tuple[Any, ...] = ()
    told: tuple[Any, ...] = ()
    as_they_are: frozenset[int] = frozenset()
    open: OpenSettings = field(default_factory=lambda: OpenSettings(NumbersRead()))
    classes: Classes = field(default_factory=lambda: Classes(""))
    acts: Acts = field(default_factory=Acts)
    reads_states: bool = False
    _names_states: bool = False
    _before: Sequence[Bag] = ()
    _classes: Sequence[tuple[Any, type]] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on the tape's tensors."""
        self.open.reads.restart()
        with reading(self.open.reads if self.open.may_read else None), mathematics():
            return self._run_open(args, kwargs)

    def _run_open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.open.start()
        args, kwargs = self.open.put_arguments((args, kwargs))
        if not (self.open.may_open or self.open.log.is_used):
            return self._run(args, kwargs)
        try:
            with kinds_called():
                return self._run(args, kwargs)
        finally:
            self.open.restore()
            self.found = self.open.plain(self.found)
            self._before = self.open.plain_bags(self._before)

    @contextlib.contextmanager
    def _watched(
        self, recorder: Recorder, remembering: Remembering, of_functions: OfFunctions
    ) -> Iterator[None]:
        """While the function itself runs."""
        noted = watching(of_functions), self.classes.making()
        once = _once_outside(recorder, remembering)
        with recorder, once, noted[0], noted[1], as_called(), self.classes:
            yield
            remembering.finish()
        self.ran.classes |= self.classes.met
        of_functions.refuse_other_state(recorder.ran.users)

    def _start(self) -> None:
        self.found, self.in_arguments, self.computed = (), (), ()
        self.kept, self.kept_identities = (), ()
        self.read_off = self.returned = self.written = ()

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.take_back()
        self._start()
        self.root = (self.function, *[self.leaves[index] for index in self.holders()])
        walk = self._walk()
        self.environment = environment = walk.found
        self.open.put(environment)
        snapshots = state.Snapshots(environment)
        bags = snapshots.bags
        held, draws, hooks = Held(environment), Draws(environment), HooksOfAllModules(self.name)

        def started(code: types.CodeType, namespace: dict[str, Any]) -> None:
            """See what the globals of code are before it runs, which may change them."""
            walk.add_code(code, namespace)
            self.open.put(environment)
            snapshots.update(code)
            held.update()
            draws.update()
            self._look_for_states(code)

        given = [
            (path, thing, arguments.parts(thing) if arguments.is_own(thing) else None)
            for path, thing in arguments.containers((args, kwargs))
        ]
        copies = [
            (path, Bag(id(thing), "", thing, state.contents_of(thing)))
            for path, thing, parts in given
            if parts is None
        ]
        changes = Changes(self.name, environment)
        of_functions = OfFunctions(bags, environment, changes)
        everything = Everything(bags, [bag for _, bag in copies], changes)
        remembering = Remembering(everything.look, everything.has_changed, everything.made)
        recorder = Recorder(started, Outside(remembering))
        self.ran = recorder.ran
        try:
            with self._watched(recorder, remembering, of_functions):
                result = self.function(*args, **kwargs)
            snapshots.note_new_globals()
            environment.names.add_run(self.ran.asked, self.ran.whole, self.ran.users)
            if reads_unseen(environment):
                environment.names.read_all()
            self.open.refuse_functions(of_functions.called)
            hooks.refuse_changes(environment)
            self._refuse(draws, held, snapshots)
            self._note_changes(bags, copies, changes)
        except Exception as error:
            # Who catches it calls the function as it is, which does all this again.
            draws.put_back()
            of_functions.put_back()
            held.put_back()
            self._refuse_iterators(draws.resting(self.ran.resumed))
            if isinstance(error, FuncaotError | FirstStepError) or is_untraceable(error):
                refuse_states(self.name, environment, self.ran)
            snapshots.put_back()
            raise
        self._put_back(of_functions, changes)
        self._classes, self.acts = snapshots.classes, of_functions.acts
        self._check_own(given, copies)
        return self._outcome(result, changes, _Kept(bags, given, environment))

    def _walk(self) -> Walk:
        """Walk before the function runs, with the state of optimizers if it is known to be read."""
        walk = Walk(self.root, waits=True)
        walk.found.names.reads_states = self.reads_states
        walk.go()
        return walk

    def _look_for_states(self, code: types.CodeType) -> None:
        """Have the call captured once more if code reads the state of an optimizer.

        Raises:
            StateReadError: If it may, and nobody has looked at what the state was before.
        """
        environment = self.environment
        self._names_states = self._names_states or names_state(code)
        if self._names_states and not environment.names.reads_states:
            self.reads_states = any(map(is_steps_own, environment.objects.values()))
            self._check_states()

    def _check_states(self) -> None:
        if self.reads_states and not self.environment.names.reads_states:
            raise StateReadError

    def _note_changes(
        self, bags: Sequence[Bag], copies: Sequence[tuple[arguments.Path, Bag]], changes: Changes
    ) -> None:
        """Note what the run changed, and numbers that it read off tensors to do so."""
        self.found = self._found(bags, changes, self.environment)
        self.in_arguments = self._found_in_arguments(copies, changes, self.environment)
        self.read_off = changes.numbers()

    def given(self) -> list[torch.Tensor]:
        """The tensors among the arguments, each once."""
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        return list({id(tensor): tensor for tensor in tensors}.values())

    def take_back(self) -> None:
        """Undo what else the last run changed, which only libraries look at: it isn't to count."""
        state.put_back(self._before)
        state.put_back_classes(self._classes)
        self._before = self._classes = ()
        self.acts.take_back()

    def _refuse(self, draws: Draws, held: Held, snapshots: state.Snapshots) -> None:
        """Refuse what would happen once: draws, changes in extensions, states, other threads."""
        self._check_states()  # The function may have caught what said so.
        self.ran.reads_states = self.reads_states
        draws.refuse_drawn(self.name)
        self.resting = draws.resting(self.ran.resumed)
        held.refuse_changed(self.name)
        refuse_states(self.name, self.environment, self.ran)
        self._refuse_replaced(snapshots)
        if self.ran.uses_threads:
            raise UnsupportedError(
                f"{self.name} has another thread run something, which would happen once, when it "
                "is captured, and not at every call.",
                remedy="keep threads outside of the compiled function, or compile what runs in "
                "them.",
            )

    def _refuse_replaced(self, snapshots: state.Snapshots) -> None:
        """Refuse another class for an object that was there, or other code for a function."""
        replaced = snapshots.replaced()
        if replaced is not None:
            thing, name = replaced
            path = path_of(self.environment, id(thing))
            raise UnsupportedError(
                f"{self.name} assigns {path}.{name}, which would happen once, when it is captured, "
                "and not at every call.",
                remedy="do it outside of the compiled function.",
            )

    def _refuse_iterators(self, resting: Container[int]) -> None:
        """Refuse what an iterator that was read may have given before an error."""
        try:
            refuse_iterators(self.environment, self.name, resting)
        except UnsupportedError:
            # What the code that ran reads is a part of what any code may.
            texts = [leaf for leaf in self.leaves if type(leaf) is str]
            refuse_iterators(scan_what_ran(self.root, self.ran, texts), self.name, resting)

    def _put_back(self, of_functions: OfFunctions, changes: Changes) -> None:
        """Undo what was changed, after a note of what Functions that were called keep, and keys."""
        self.pinned = frozenset(reached_by(of_functions.called))
        self.keys = tuple(key for bag, _ in self.found for key in keys_in(bag.now()))
        state.put_back([bag for bag, _ in self.found])
        self._before = [bag for bag in of_functions.before() if changes.has_changed(bag)]

    def _outcome(self, result: Any, changes: Changes, kept: _Kept) -> Any:
        """The result, and the new values if something is stored or was there before."""
        known = Known(self._old(), kept.number_of, made_in(self.ran.codes), kept.passed)
        outcome, self.returned = read_off((result, changes.packed()), known.is_old)
        (result, values), self.written = computed_in(outcome, known.is_old, changes.number)
        del outcome  # What holds a new object besides the value would be taken for its keeper.
        self.computed = tuple(changes.computed)
        if not (self.found or self.in_arguments or self.returned or self.written):
            taken = taken_apart(result, known, self.name)
            if not kept.found:
                return self._noted(taken)
        taken = taken_apart((result, values), known, self.name)
        self.kept, self.kept_identities = tuple(kept.found), tuple(kept.identities)
        return self._noted(taken)

    def _noted(self, taken: Any) -> Any:
        """What the program returns and stores, after a note of what it keeps of that for itself."""
        if isinstance(taken, Parts):
            held = taken.plan.constants + taken.leaves
            self.keys += tuple(taken.plan.keys)
        else:
            held = tree_flatten(taken)[0]
            self.keys += tuple(keys_in(taken))
        for key in self.keys:
            refuse_text(key, self.name)
        self.pinned |= {id(thing) for thing in kept_in(held)}
        self.told = tuple(thing for thing in held if is_scalar(thing))
        return taken

    def alike(self, environment: Environment) -> frozenset[int]:
        """Objects of an environment in whose place another one may stand, by ``id``."""
        return alike(environment, self.pinned, self.keys, self.told)

    def _old(self) -> Callable[[Any], bool]:
        """Whether a thing was there before."""
        environment = self.environment
        functions = [f for f in environment.objects.values() if isinstance(f, types.FunctionType)]
        others = {id(cell) for function in functions for cell in function.__closure__ or ()}
        others.update(id(thing) for _, thing in environment.identities)
        return lambda thing: id(thing) in environment.objects or id(thing) in others

    def holders(self) -> list[int]:
        """Positions of the leaves through which the function may reach more than an argument."""
        return [
            index
            for index, leaf in enumerate(self.leaves)
            if isinstance(leaf, LOOKED_INTO)
            or not (isinstance(leaf, torch.Tensor) or is_setting(leaf))
        ]

    def _found(
        self, bags: Sequence[Bag], changes: Changes, environment: Environment
    ) -> tuple[tuple[Bag, Change], ...]:
        found = []
        for bag in bags:
            if changes.has_changed(bag):
                refuse_counted(environment, bag, self.name)
                refuse_other_state(environment.objects.get(bag.holder), bag.before)
                read = bag.holder not in environment.unread
                change = changes.of(bag, path_of(environment, bag.holder), read=read)
                if change is not None:
                    found.append((bag, change))
        return tuple(found)

    def _found_in_arguments(
        self,
        copies: Sequence[tuple[arguments.Path, Bag]],
        changes: Changes,
        environment: Environment,
    ) -> tuple[tuple[arguments.Path, Change], ...]:
        found = []
        for path, bag in copies:
            if not changes.has_changed(bag):
                continue
            change = changes.of(bag, arguments.text(path), read=True)
            if change is None:
                continue
            if id(arguments.find(self.call, path)) in environment.objects:
                raise UnsupportedError(
                    f"{self.name} changes {change.path}, which it also reaches in another way.",
                    remedy="pass it as an argument only.",
                )
            found.append((path, change))
        return tuple(found)

    def _check_own(
        self,
        given: Sequence[tuple[arguments.Path, Any, tuple[Any, ...] | None]],
        copies: Sequence[tuple[arguments.Path, Bag]],
    ) -> None:
        """Refuse changes of containers that aren't Python's, other than those of attributes."""
        for path, thing, parts in given:
            if parts is None or arguments.are_same(arguments.parts(thing), parts):
                continue
            inside = [(at[len(path) :], bag) for at, bag in copies if at[: len(path)] == path]
            if not (inside and arguments.says_changes(thing, parts, inside)):
                kind = type(thing).__name__
                raise UnsupportedError(
                    f"{self.name} changes {arguments.text(path)}, a {kind}, in place.",
                    remedy="return what changes.",
                )
