"""Inductor's C++ kernels for the CPU: `inductor` compiles those of one graph as one file with this.

Note [One file of kernels]: Inductor gives each kernel to the C++ compiler by itself. Reading the
headers and linking takes longer than most kernels, and kernels of one graph use the same templates.
Together, the five of a convolutional network take less than half of the time. With several
compile threads there is a file for each of them, so that no core is idle, and a long file is
compiled while Inductor writes the next one (``early``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._C._dynamo import guards
from torch._inductor import async_compile
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.utils import clear_on_fresh_cache

from funcaot._torch.inductor.kernels.files import Kernel, in_files, kernel_of, source_of
from funcaot.base.scopes import holding

__all__ = ["compiled_together", "load", "start"]

_LOG = logging.getLogger(__name__)

async_compile_class = async_compile.AsyncCompile

# Address of the C function that reads a tensor's data pointer.
_DATA_POINTER = guards.__dict__["_torchinductor_pyobject_tensor_data_ptr"]


@clear_on_fresh_cache
class _Files(CppPythonBindingsCodeCache):
    """Inductor's cache of compiled files, in memory and on disk, for files of several kernels."""

    cache: dict[str, Callable[[], Any]] = {}
    entry_function = "kernels"

    @staticmethod
    def cache_clear() -> None:
        _Files.cache.clear()

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> Any:
        library = super()._load_library_inner(path, key)
        library.connect(_DATA_POINTER)
        return library


def load(source: str) -> Any:
    """The module of C++ source like that of `source_of`: it has a method ``connect``."""
    return _Files.load_async(source)()


def start(file: dict[str, Kernel]) -> Callable[[], Any]:
    """Have a file compiled, in another thread if there are several.

    Returns:
        What waits for it and gives its module, the same for the same file.
    """
    several = async_compile.get_compile_threads() > 1
    return _Files.load_async(source_of(file), submit_fn=_Together.submit if several else None)


class _ThisThread(threading.local):
    together = False


_this_thread = _ThisThread()


class _Together(async_compile.AsyncCompile):
    """What a module made by Inductor asks for its kernels: here they wait for one another.

    A thread that isn't compiling for us gets what it would have got.
    """

    def __new__(cls) -> Any:
        made: Any = cls if _this_thread.together else async_compile_class
        return super().__new__(made)

    def cpp_pybinding(self, argtypes: Sequence[str], source_code: str) -> Any:
        """Take a kernel; an unusual one goes Inductor's own way at once."""
        kernel = kernel_of(argtypes, source_code)
        return kernel or super().cpp_pybinding(list(argtypes), source_code)

    def wait(self, scope: dict[str, Any]) -> None:
        """Replace what waits in a module's namespace by functions."""
        waiting = {name: value for name, value in scope.items() if isinstance(value, Kernel)}
        try:
            scope.update(self._functions(waiting))
        except Exception as error:  # noqa: BLE001 - each can be had by itself
            _LOG.info("Kernels don't compile in one file, so one by one: %s", error)
            for name, kernel in waiting.items():
                scope[name] = super().cpp_pybinding(list(kernel.argument_types), kernel.source)
        super().wait(scope)

    def _functions(self, waiting: dict[str, Kernel]) -> dict[str, Any]:
        files = in_files(waiting, async_compile.get_compile_threads())
        loading = [start(file) for file in files]
        return {
            name: getattr(load(), name)
            for file, load in zip(files, loading, strict=True)
            for name in file
        }


@contextlib.contextmanager
def compiled_together() -> Iterator[None]:
    """Let modules that Inductor makes compile their kernels as one file."""
    with (
        holding(_this_thread, together=True),
        holding(async_compile, AsyncCompile=_Together),
    ):
        yield


def _renew_pool() -> None:
    """In a forked child the threads that compile aren't there, and nobody would take a file."""
    pool: Any = async_compile_class.pool
    pool.cache_clear()


os.register_at_fork(after_in_child=_renew_pool)
