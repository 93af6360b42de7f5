"""Inductor's C++ kernels for the CPU: those of one graph compiled as one file.

Note [One file of kernels]: Inductor gives each kernel to the C++ compiler by itself. Reading the
headers and linking takes longer than most kernels, and kernels of one graph use the same templates.
Together, the five of a convolutional network take less than half of the time. With several
compile threads there is a file for each of them, so that no core is idle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._C._dynamo import guards
from torch._inductor import async_compile
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.utils import clear_on_fresh_cache

from funcaot.base.scopes import holding

_LOG = logging.getLogger(__name__)

async_compile_class = async_compile.AsyncCompile

# Address of the C function that reads a tensor's data pointer.
_DATA_POINTER = guards.__dict__["_torchinductor_pyobject_tensor_data_ptr"]

_PREFIX = re.compile(r"\s*#include [<\"]torch/csrc/inductor/cpp_prefix\.h[>\"]\s*\n")
_DIRECTIVE = re.compile(r"^\s*#(?!\s*pragma\b)", re.MULTILINE)
_ENTRY = re.compile(r"\bkernel\b")
_NUMBERS = {"int64_t", "float", "double"}

# A file of more characters is split: what the C++ compiler needs grows with it.
_LARGEST = 200_000

# How Python calls kernels: without tuples, which is faster than Inductor's own bindings.
_BINDINGS = """\
#include <Python.h>
#include <exception>
#include <type_traits>
#include <utility>

namespace {

void* (*data_pointer)(PyObject*);

struct PythonError : std::exception {};

template <typename T> T argument(PyObject* value) {
    if constexpr (std::is_pointer_v<T>) {
        return static_cast<T>(data_pointer(value));
    } else {
        T number;
        if constexpr (std::is_floating_point_v<T>) {
            number = static_cast<T>(PyFloat_AsDouble(value));
        } else {
            number = static_cast<T>(PyLong_AsLongLong(value));
        }
        if (number == T(-1) && PyErr_Occurred()) throw PythonError();
        return number;
    }
}

template <typename... Arguments, std::size_t... place>
PyObject* call(
    void (*kernel)(Arguments...), PyObject* const* values, Py_ssize_t count,
    std::index_sequence<place...>
) {
    if (count != sizeof...(Arguments)) {
        return PyErr_Format(
            PyExc_TypeError, "a kernel of %%zu arguments got %%zd", sizeof...(Arguments), count);
    }
    try {
        kernel(argument<Arguments>(values[place])...);
    } catch (const std::exception& error) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "unhandled error");
        return nullptr;
    }
    Py_RETURN_NONE;
}

template <typename... Arguments>
PyObject* call(void (*kernel)(Arguments...), PyObject* const* values, Py_ssize_t count) {
    return call(kernel, values, count, std::index_sequence_for<Arguments...>());
}

PyObject* connect(PyObject*, PyObject* address) {
    void* pointer = PyLong_AsVoidPtr(address);
    if (pointer == nullptr) return nullptr;
    data_pointer = reinterpret_cast<decltype(data_pointer)>(pointer);
    Py_RETURN_NONE;
}

%(functions)s
PyMethodDef methods[] = {
    {"connect", connect, METH_O, ""},
%(methods)s
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernels", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_kernels(void) {
    PyObject* module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
"""

_FUNCTION = """\
PyObject* call_%(name)s(PyObject*, PyObject* const* values, Py_ssize_t count) {
    return call(kernels_%(name)s::%(name)s, values, count);
}
"""
_METHOD = (
    '    {"%(name)s", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>('
    'call_%(name)s)), METH_FASTCALL, ""},'
)


@dataclass(frozen=True)
class _Kernel:
    """A kernel that waits to be compiled.

    Attributes:
        argument_types: As Inductor gives them.
        source: What Inductor would compile by itself.
        body: The same without includes.
    """

    argument_types: tuple[str, ...]
    source: str
    body: str

    def named(self, name: str) -> str:
        """The kernel as a function of its own name, which profilers show."""
        body = _ENTRY.sub(name, self.body)
        return f"namespace kernels_{name} {{\n{body}\n}}\n"


def _kernel_of(argument_types: Sequence[str], source: str) -> _Kernel | None:
    """A kernel that can share a file with others, None if there is anything unusual about it."""
    plain = [name.replace("const ", "") for name in argument_types]
    if not all(name.endswith("*") or name in _NUMBERS for name in plain):
        return None
    prefix = _PREFIX.match(source)
    if prefix is None:
        return None
    body = source[prefix.end() :]
    if _DIRECTIVE.search(body) or len(_ENTRY.findall(body)) != 1 or 'extern "C"' not in body:
        return None
    return _Kernel(tuple(argument_types), source, body)


def _file_of(kernels: dict[str, _Kernel]) -> str:
    functions = "".join(_FUNCTION % {"name": name} for name in kernels)
    methods = "\n".join(_METHOD % {"name": name} for name in kernels)
    return "".join(
        [
            "#include <torch/csrc/inductor/cpp_prefix.h>\n",
            *(kernel.named(name) for name, kernel in kernels.items()),
            _BINDINGS % {"functions": functions, "methods": methods},
        ]
    )


def _files(kernels: dict[str, _Kernel], threads: int) -> list[dict[str, _Kernel]]:
    """Distribute kernels over files, one for each thread, of about the same size."""
    total = sum(len(kernel.source) for kernel in kernels.values())
    count = min(len(kernels), max(threads, -(-total // _LARGEST)))
    files: list[dict[str, _Kernel]] = [{} for _ in range(count)]
    sizes = [0] * count
    largest_first = sorted(kernels, key=lambda name: -len(kernels[name].source))
    for name in largest_first:
        smallest = sizes.index(min(sizes))
        files[smallest][name] = kernels[name]
        sizes[smallest] += len(kernels[name].source)
    return files


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
    """The module of C++ source like that of `_file_of`: it has a method ``connect``."""
    return _Files.load_async(source)()


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
        kernel = _kernel_of(argtypes, source_code)
        return kernel or super().cpp_pybinding(list(argtypes), source_code)

    def wait(self, scope: dict[str, Any]) -> None:
        """Replace what waits in a module's namespace by functions."""
        waiting = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
        try:
            scope.update(self._functions(waiting))
        except Exception as error:  # noqa: BLE001 - each can be had by itself
            _LOG.info("Kernels don't compile in one file, so one by one: %s", error)
            for name, kernel in waiting.items():
                scope[name] = super().cpp_pybinding(list(kernel.argument_types), kernel.source)
        super().wait(scope)

    def _functions(self, waiting: dict[str, _Kernel]) -> dict[str, Any]:
        threads = async_compile.get_compile_threads()
        submit = self.submit if threads > 1 else None
        files = _files(waiting, threads)
        loading = [_Files.load_async(_file_of(file), submit_fn=submit) for file in files]
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
