"""Functions of C that reach beyond Python's objects, and what each does; ``watching`` asks.

No program does any of this: it would happen once, in the capture. What is only printed or logged is
none of it, and neither is what says the same in each call, such as the name of the machine.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import time
import weakref
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from funcaot._torch.autograd.nodes import engine

__all__ = ["AFTERWARDS", "OF_MODULES", "SEEDING", "act_on"]

# What a backward queues runs when all of it is over.
AFTERWARDS = "has something run after the backward"
SEEDING = "reads or sets the state of a random generator of torch"

_CLOCK = "reads the clock"
_SETTING = "changes a setting of the process"
_PROCESS = "starts or stops a process"
# Functions of ``time`` that don't ask what time it is.
_TIMELESS = {"mktime", "strptime", "tzset", "get_clock_info", "clock_getres", "sleep"}
# What functions do, by module and name.
_TABLE: tuple[tuple[str, str, str], ...] = (
    ("time", _CLOCK, " ".join(vars(time).keys() - _TIMELESS)),
    ("time", "waits", "sleep"),
    (builtins.__name__, "waits for input", "input"),
    (io.__name__, "opens a file", "open"),
    (
        os.stat.__module__,
        "asks for a file or a folder",
        "stat lstat fstat access listdir scandir readlink statvfs getxattr read pread",
    ),
    (
        os.stat.__module__,
        "changes a file or a folder",
        "open write pwrite mkdir rmdir remove unlink rename replace link symlink chmod chown "
        "lchown truncate ftruncate utime mkfifo mknod setxattr sendfile copy_file_range",
    ),
    (
        os.stat.__module__,
        _PROCESS,
        "system fork forkpty posix_spawn posix_spawnp execv execve kill killpg",
    ),
    ("_posixsubprocess", _PROCESS, "fork_exec"),
    (
        os.stat.__module__,
        _SETTING,
        "putenv unsetenv chdir fchdir umask nice setpriority sched_setaffinity",
    ),
    ("sys", _SETTING, "setrecursionlimit setswitchinterval set_int_max_str_digits"),
    ("gc", _SETTING, "enable disable set_threshold set_debug freeze unfreeze"),
    ("_signal", _SETTING, "alarm setitimer signal"),
    (os.stat.__module__, "draws random numbers of the system", "urandom getrandom"),
    (os.stat.__module__, _CLOCK, "times"),
)
# Modules whose objects are connections to something else.
_CONNECTIONS = {
    "_socket", "_ssl", "select", "sqlite3", "_multiprocessing", "_queue", "_csv",
}  # fmt: skip
_REACHING = {*_CONNECTIONS, "_io", "datetime", "torch._C"}
# What a generator of torch says of its state, or does to it; drawing from it is a program's.
_STATES = {
    "clone_state", "get_offset", "get_state", "graphsafe_get_state", "graphsafe_set_state",
    "initial_seed", "manual_seed", "seed", "set_offset", "set_state",
}  # fmt: skip
_DATES = {"now", "utcnow", "today"}
# Of a file that was opened outside, what neither reads nor writes.
_ABOUT_A_FILE = {"fileno", "isatty", "readable", "writable", "seekable", "tell", "close", "flush"}
_STANDARD = ("<stdin>", "<stdout>", "<stderr>", 0, 1, 2)


def _of_modules() -> dict[Any, str]:
    found = {}
    for module, act, names in _TABLE:
        known = vars(sys.modules.get(module, ModuleType(module)))
        for name in names.split():
            if isinstance(function := known.get(name), BuiltinFunctionType):
                found[function] = act
    return found


# Functions that reach outside, each with what it does, in words.
OF_MODULES = _of_modules()
_get_module = type.__dict__["__module__"].__get__  # no code of the user's
_verdicts: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def act_on(owner: Any, name: str) -> str | None:
    """What a builtin method does outside, in words; None for one that does nothing there.

    Args:
        owner: What it belongs to: an object, or a class.
        name: What it is called.
    """
    if isinstance(owner, type):
        is_date = name in _DATES and _module(owner) == "datetime"
        return _CLOCK if is_date else None
    module = _module(type(owner))
    if module == "_io":
        return _act_of_file(owner, name)
    if module == "torch._C":
        return _act_on_torch(owner, name)
    return f"uses a {type(owner).__name__}" if module in _CONNECTIONS else None


def _act_on_torch(owner: Any, name: str) -> str | None:
    """What a method of an object of torch does that no graph has."""
    if name in _STATES and isinstance(owner, torch.Generator):
        return SEEDING
    if name == "queue_callback" and owner is engine:
        return AFTERWARDS
    return None


def _act_of_file(file: Any, name: str) -> str | None:
    """What a method of an open file does; what is in memory is compared elsewhere."""
    if isinstance(file, io.BytesIO | io.StringIO) or name in _ABOUT_A_FILE:
        return None
    if file in (sys.stdout, sys.stderr) or getattr(file, "name", None) in _STANDARD:
        return None
    return "reads or writes a file that is open"


def _module(kind: type) -> str:
    """Which of the modules that reach outside a class, or what it is made of, is from."""
    found = _verdicts.get(kind)
    if found is None:
        modules = map(_get_module, type.__dict__["__mro__"].__get__(kind))
        found = _verdicts[kind] = next((name for name in modules if name in _REACHING), "")
    return found
