"""Which Python code runs while a function is captured: recorded for the reader.

What a call depends on is read by some code that ran: if all that this code reads is as it was, the
same code runs again. So the code that ran, and nothing else, says which names matter.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import CO_GENERATOR
from typing import Any

import torch

from funcaot._torch.tensors.sizes.called_kinds import trace_of
from funcaot._torch.tracing.seen_classes import show_classes, show_in_arguments, showing_classes
from funcaot.aot.closure.called import Called, is_followed
from funcaot.aot.closure.hashing.hashed import ANY, hashed_in, name_of_kind
from funcaot.aot.closure.hidden.kept_results import KeptResults
from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.running.closures import Closures
from funcaot.aot.closure.running.swallowed import Swallowed
from funcaot.base.python_modules import is_pythons
from funcaot.base.scopes import PausableTrace, Watch
from funcaot.base.variables import OF_ENVIRON, Variables

# Of torch, only what reads attributes of the user's modules and optimizers; the rest is machinery.
_MACHINERY = (
    "funcaot.",
    "torch._",
    "torch.fx",
    "torch.utils._",
    "torch.overrides",
    "torch.library",
)
_READING_LIBRARIES = (
    "torch.nn.",
    "torch.optim.",
    "torch.distributions.",
    "torch.utils.data.",
    "torch.amp.",
    "torch.ao.",
)
# Torch's classes of plain objects, all of whose code is read.
_OBJECTS_OF_TORCH = ("torch.distributions.", "torch.utils.data.", "torch.testing.")
_OF_TORCH = {
    "torchgen", "functorch", "triton", "sympy", "mpmath", "networkx", "optree",
    "typing_extensions",  # It puts functions of its own into the module typing.
}  # fmt: skip
# Torch's functions that read or set the state of its random generators.
RANDOM_STATES = frozenset(
    f"{name}{which}"
    for name in ("manual_seed", "seed", "get_rng_state", "set_rng_state")
    for which in ("", "_all")
) | {"initial_seed", "fork_rng"}
# What pytest writes into the asserts of tests leads to everything that pytest holds.
_LIBRARIES = {"torch", "funcaot", "numpy", *_OF_TORCH, "pytest", "_pytest", "pluggy"}
# Torch's functions that hold tensors of the user's, whom they are given to.
_MADE_FOR_USERS = {("torch._functorch.eager_transforms", "linearize.<locals>.jvp_fn")}
_MAKING_CLASSES = ("abc", "types", "typing", "dataclasses")
# Python's functions that have other threads run something.
_TO_THREADS = {
    ("threading", "start"),
    ("concurrent.futures.thread", "submit"),
    *(("multiprocessing.pool", f"{name}_async") for name in ("apply", "_map")),
    *(("multiprocessing.pool", f"imap{order}") for order in ("", "_unordered")),
}
# This one, what stands in for functions of Python, and what follows rules.
_ON_BEHALF = (__name__, show_classes.__module__, "funcaot.aot.state.follower")
# Code that reads all attributes of an object on a user's behalf.
_COPYING = ("copy", "dataclasses", "pickle", "copyreg")


def is_machinery(module: str) -> bool:
    """Whether code of a module reads nothing of the user's by name."""
    return module == "funcaot" or (
        module.startswith(_MACHINERY) and not module.startswith("funcaot.testing.")
    )


def is_library(module: str) -> bool:
    """Whether a module is torch's, NumPy's, Python's or ours: its functions aren't followed."""
    if module.startswith("funcaot.testing."):
        return False
    if module.partition(".")[0] in _LIBRARIES or is_pythons(module):
        return True
    return module.startswith("namedtuple_")  # as a named tuple's own code says


def is_users(kind: type) -> bool:
    """Whether a class is the user's, so that its attributes are followed."""
    module = module_of(kind)
    if module in _MAKING_CLASSES and getattr(sys.modules[module], kind.__name__, None) is not kind:
        # It is made by a call, and named after the module of its metaclass.
        return any(is_users(base) for base in kind.__bases__)
    return module != "builtins" and not is_library(module)


def is_plain_object(kind: type) -> bool:
    """Whether a class is the user's, or one of torch whose objects are as plain as a user's."""
    return module_of(kind).startswith(_OBJECTS_OF_TORCH) or is_users(kind)


def is_torchs(function: types.FunctionType) -> bool:
    """Whether a function is torch's or ours and leads to nothing of the user's.

    What torch wraps around an object of the user's, such as ``vmap(nn.Linear(2, 3))``, says that it
    is of the module that the object's class is of.
    """
    module = module_of(function)
    if not (is_machinery(module) or module.partition(".")[0] == "torch"):
        return False
    if function.__closure__ is None:
        return True
    if (module, function.__qualname__) in _MADE_FOR_USERS:
        return False
    if function.__globals__.get("__name__") == module:
        return True
    named = getattr(sys.modules.get(module), function.__name__, None)
    return named is function


def is_put_there(value: Any) -> bool:
    """Whether something in a library is a user's function or object, which leads on."""
    if isinstance(value, types.FunctionType):
        return not is_library(str(value.__globals__.get("__name__")))
    return callable(value) and is_users(type(value))


def _is_asked_by_machinery() -> bool:
    """Whether what runs now was called by torch's machinery, maybe through other libraries.

    What that reads of the process says nothing of the user's program.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module not in _ON_BEHALF and (is_machinery(module) or not is_library(module)):
            return is_machinery(module)
        frame = frame.f_back
    return False


class ImportedError(Exception):
    """A module is imported while code is recorded; nothing of it has run."""


_tried: set[str] = set()


def _import_in_progress(frame: types.FrameType) -> tuple[str, bool] | None:
    """The module whose import a frame belongs to, and whether a library asked for it."""
    found = None
    asker: types.FrameType | None = frame
    while asker is not None:
        spec = asker.f_globals.get("__spec__")
        if asker.f_code.co_name == "<module>" and getattr(spec, "_initializing", False):
            found = asker
        asker = asker.f_back
    if found is None:
        return None
    asker = found.f_back
    while asker is not None and _module_of(asker).partition(".")[0].endswith("importlib"):
        asker = asker.f_back
    by = "" if asker is None else _module_of(asker)
    name = _module_of(found)
    return name, is_library(name) or is_library(by)


def _looks_for_module(frame: types.FrameType) -> bool:
    """Whether a frame runs for a finder of modules, which Python asks in an import.

    Installers put finders of their own into ``sys.meta_path``, which no library is. What they read
    says where modules are.
    """
    asker: types.FrameType | None = frame.f_back
    while asker is not None:
        if asker.f_code.co_name == "_find_spec" and _module_of(asker) == "importlib._bootstrap":
            return True
        asker = asker.f_back
    return False


@dataclass(eq=False)
class Ran:
    """The code that ran.

    Attributes:
        users: Code objects of the user's, each with the globals that it ran with.
        libraries: Those of libraries that read attributes of what a user gives them.
        variables: Environment variables that were read.
        uses_threads: Whether users' code had another thread do something, which nobody sees.
        random_states: Functions of torch that users' code called for random states.
        asked: Names by which users' code got or set attributes of things (``getattr(x, name)``).
        classes: Users' classes of tensors that the code was given or made.
        called: What libraries hold that the code went through.
        of_libraries: Code of libraries that ran for anybody, and is followed if a user's calls it.
        resumed: Frames of generators that went on, by ``id``.
        hashed: Classes whose objects a ``__hash__`` of the user's may have told apart.
        whole: Classes of whose objects code was shown all attributes, by name; ANY for any object.
        owners: Objects whose methods ran as hooks of tensors, which nothing else may lead to.
        closures: What functions closed over that users' code ran for.
        kept: Which results functions gave that they kept.
        reads_states: Whether code other than a step names the state of an optimizer.
    """

    users: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)
    libraries: set[types.CodeType] = field(default_factory=set)
    variables: Variables = field(default_factory=Variables)
    uses_threads: bool = False
    random_states: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)
    called: Called = field(default_factory=Called)
    of_libraries: set[types.CodeType] = field(default_factory=set)
    resumed: set[int] = field(default_factory=set)
    hashed: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    owners: list[Any] = field(default_factory=list)
    closures: Closures = field(default_factory=Closures)
    kept: KeptResults = field(default_factory=KeptResults)
    reads_states: bool = False
    _seen: set[types.CodeType] = field(default_factory=set)

    def note(self, code: types.CodeType, namespace: dict[str, Any]) -> bool:
        """Note a code object that starts; whether it is the user's and new."""
        if code in self._seen:
            return False
        self._seen.add(code)
        if code.co_name == "__del__":  # whenever an object dies
            return False
        module = namespace.get("__name__")
        if not isinstance(module, str):
            module = ""
        if is_machinery(module):
            return False
        if is_library(module):
            if module.startswith(_READING_LIBRARIES) or module in _COPYING:
                self.libraries.add(code)
            if (module, code.co_name) in _TO_THREADS:
                self._seen.discard(code)  # Each time somebody else may ask.
                self.uses_threads |= not _is_asked_by_machinery()
            if is_followed(module) or (code in self.libraries and module != "torch.nn.parameter"):
                self.of_libraries.add(code)
            return False
        self.users[code] = namespace
        self.closures.add(code)
        return True

    def note_random_state(self, frame: types.FrameType) -> None:
        """Note a function of that kind, unless torch calls it itself, as a checkpoint does."""
        module = _module_of(frame)
        caller = frame.f_back
        while caller is not None and _module_of(caller) == "contextlib":
            caller = caller.f_back
        if module.startswith("torch.") and caller is not None:
            if not is_library(_module_of(caller)):
                self.random_states.add(f"{module}.{frame.f_code.co_name}")

    def note_whole(self, thing: Any) -> None:
        """Note that code was shown all attributes of something."""
        kind = type(thing)
        plain = (
            kind.__dictoffset__
            and not issubclass(kind, (type, types.ModuleType, types.FunctionType, torch.Tensor))
            and isinstance(kind.__getattribute__, types.WrapperDescriptorType)
            and isinstance(_dictionary_in(kind), _OF_C | None)
        )
        self.whole.add(name_of_kind(kind) if plain else ANY)

    def leave_out(self, code: types.CodeType) -> None:
        """Never note a code object."""
        self._seen.add(code)

    def forget(self, code: types.CodeType) -> None:
        """Take back that a code object was noted."""
        self._seen.discard(code)
        self.users.pop(code, None)

    @property
    def codes(self) -> frozenset[types.CodeType]:
        """All code that may read something of the user's."""
        return frozenset(self.users) | self.libraries


# That of a namespace is a member.
_OF_C = types.GetSetDescriptorType | types.MemberDescriptorType


def _dictionary_in(kind: type) -> Any:
    """What answers for ``__dict__`` of the objects of a class."""
    return next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)


class Recorder(PausableTrace):
    """Records the code that runs inside its block, in this thread.

    It uses Python's trace function and passes each event on to one that was there before, such as
    a debugger's.

    Attributes:
        ran: What ran.
        imported: The module that the recorded code imports for the first time, if it does.
    """

    imported = ""

    def __init__(
        self,
        started: Callable[[types.CodeType, dict[str, Any]], None] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            started: Called before code of the user's runs for the first time.
            watch: Sees functions of C that the code calls.
        """
        self.ran = Ran()
        self.asked = self.ran.asked
        # The garbage collector calls these wherever it runs.
        for callback in gc.callbacks:
            code = getattr(callback, "__code__", None)
            if isinstance(code, types.CodeType):
                self.ran.leave_out(code)
        self._started = started
        self._outer: Recorder | None = None
        self._classes = contextlib.ExitStack()
        self._watch = watch
        # By ``id``, since a hash of code takes long.
        self._passed_by: dict[int, types.CodeType] = {}
        self._swallowed = Swallowed()

    def __enter__(self) -> Recorder:
        """Start to record."""
        self.ran.kept.start()
        self._classes.enter_context(showing_classes())
        if self._watch is not None:
            self._classes.enter_context(self._watch)
        self.before = sys.gettrace()
        outer = getattr(self.before, "__self__", None)
        if isinstance(outer, Recorder):
            self.before, self._outer = outer.before, outer
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop, and restore what traced before.

        Raises:
            Exception: One of the capture's own that the recorded code has caught.
        """
        self._stop()
        self._swallowed.refuse(self.ran.users, error[1])

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """While code is tried: it has failed too if it catches an error of the capture's own."""
        around, self._swallowed = self._swallowed, Swallowed()
        raised = None
        try:
            yield
        except BaseException as error:
            raised = error
            raise
        finally:
            inside, self._swallowed = self._swallowed, around
            inside.refuse(self.ran.users, raised)

    def _stop(self) -> None:
        self._classes.close()
        self.ran.kept.stop(self.ran.users)
        if self._outer is None:
            sys.settrace(self.before)
            return
        sys.settrace(self._outer.trace)
        # What ran in a capture inside this one ran here too.
        for code, namespace in self.ran.users.items():
            self._outer.ran.note(code, namespace)
        for kept in ("random_states", "asked", "classes", "hashed", "whole", "resumed"):
            getattr(self._outer.ran, kept).update(getattr(self.ran, kept))
        self._outer.ran.variables.update(self.ran.variables)
        self._outer.ran.called.update(self.ran.called)
        self._outer.ran.closures.update(self.ran.closures)
        self._outer.ran.owners += self.ran.owners

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """Note the code of a frame that starts."""
        code = frame.f_code
        if self._watch is not None:
            self._watch.resume()
        if self.before is None and self._passed_by.get(id(code)) is code:
            return None
        if code.co_flags & CO_GENERATOR:
            self.ran.resumed.add(id(frame))  # Its variables aren't to be kept alive.
        if code.co_name in RANDOM_STATES:
            self.ran.note_random_state(frame)
        if code in OF_ENVIRON and not _is_asked_by_machinery():
            self.ran.variables.note(frame)
        namespace = getattr(frame.f_globals, "original", frame.f_globals)  # of a CopiedGlobals
        if self.ran.note(code, namespace) and not self._is_importing(frame):
            recorder: Recorder | None = self
            while recorder is not None:
                if recorder._started is not None:
                    recorder._started(code, namespace)
                recorder = recorder._outer
            show_classes(code, namespace)
            self.ran.called.note_put(frame)
        elif code in self.ran.of_libraries:
            if code in self.ran.libraries or self.ran.called.is_asked(frame, self.ran.users.keys()):
                self.ran.called.note(frame)
        if code in self.ran.users:
            show_in_arguments(frame)
            if code.co_freevars:
                self.ran.closures.note(frame)
            if code.co_name == "__hash__":
                self.ran.hashed.update(hashed_in(frame))
        if _tells_nothing(code, namespace):
            self._passed_by[id(code)] = code
        here = trace_of(frame) if self.before is None else self.passed_on(frame, event, argument)
        return self._swallowed.noting(frame, here) if code in self.ran.users else here

    def note_whole(self, thing: Any) -> None:
        """Code is shown all attributes of something at once."""
        self.ran.note_whole(thing)

    def _is_importing(self, frame: types.FrameType) -> bool:
        """Whether a frame of the user's belongs to an import that a library asked for.

        What a module does when it is imported, it does once: it can be neither undone nor
        replayed. What looks for it belongs to the import, whoever asked.

        Raises:
            ImportedError: The user's code asked for it, and this is its first try.
        """
        if _looks_for_module(frame):
            self.ran.forget(frame.f_code)
            return True
        found = _import_in_progress(frame) if self._started is not None else None
        if found is None:
            return False
        name, by_library = found
        if not by_library and name in _tried:  # an import that fails each time
            return False
        self.ran.forget(frame.f_code)
        if not by_library:
            _tried.add(name)
            self.imported = name
            raise ImportedError(name)
        return True


def _tells_nothing(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether nothing is ever noted of code: that of torch which reads nothing of the user's.

    Such code starts many thousand times in a capture.
    """
    module = namespace.get("__name__")
    if not isinstance(module, str) or code.co_name in RANDOM_STATES:
        return False
    of_torch = is_machinery(module) or module.partition(".")[0] in ("torch", "sympy")
    return of_torch and not module.startswith(_READING_LIBRARIES)


def _module_of(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
