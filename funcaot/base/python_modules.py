"""Which modules are Python's own: the walk over what code reads asks, and what looks for tensors.

A user's file may be called like one of them (``code/model.py``, ``profile.py``), and hides it then.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

__all__ = ["is_of_logging", "is_pythons", "runs_threads"]

_OF_THREADS = ("threading", "multiprocessing", "concurrent", "asyncio")
_INSTALLED = ("site-packages", "dist-packages")


def is_pythons(module: str) -> bool:
    """Whether a module, by its name, is one of Python's library."""
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return False
    found = sys.modules.get(package)
    if found is None:
        return True
    own = vars(found)
    file = own.get("__file__")
    if isinstance(file, str):
        return _lies_in_library(file)
    return own.get("__spec__") is not None  # Built in, or frozen.


def runs_threads(module: str) -> bool:
    """Whether a module is one of Python's that run threads or processes, and keep account of them.

    What it keeps changes whenever one of these starts or ends, whoever started it.
    """
    return module.partition(".")[0] in _OF_THREADS and is_pythons(module)


def is_of_logging(module: str) -> bool:
    """Whether a module belongs to Python's ``logging``."""
    return module.partition(".")[0] == "logging" and is_pythons(module)


@functools.lru_cache(maxsize=1024)
def _lies_in_library(file: str) -> bool:
    if not file.endswith((".py", ".pyc")):  # C code reads nothing by name.
        return True
    return any(
        inner is not None and not inner.startswith(_INSTALLED)
        for form in (os.path.abspath, os.path.realpath)
        for inner in (_inside(form(file), folder) for folder in _folders())
    )


def _inside(file: str, folder: str) -> str | None:
    """The rest of a path within a folder; None outside of it."""
    start = folder + os.sep
    return file[len(start) :] if file.startswith(start) else None


@functools.cache
def _folders() -> frozenset[str]:
    """Where Python's library lies; in an archive, beside where it would."""
    paths = sysconfig.get_paths()
    known = [paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)]
    return frozenset(form(path) for path in known for form in (os.path.abspath, os.path.realpath))
