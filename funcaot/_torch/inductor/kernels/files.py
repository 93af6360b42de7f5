"""The C++ files of a graph's kernels, which ``together`` compiles: what is in each, and how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Kernel", "filled", "in_files", "kernel_of", "source_of"]

_PREFIX = re.compile(r"\s*#include [<\"]torch/csrc/inductor/cpp_prefix\.h[>\"]\s*\n")
_DIRECTIVE = re.compile(r"^\s*#(?!\s*pragma\b)", re.MULTILINE)
_ENTRY = re.compile(r"\bkernel\b")
_UNROLLED = re.compile(r"#pragma GCC unroll \d+(?=\s+for \(long \w+_inner = 0;)")
_NUMBERS = {"int64_t", "float", "double"}

# A file of more characters is split: what the C++ compiler needs grows with it.
_LARGEST = 200_000

# A file of so many is worth a run of the C++ compiler while the other kernels are written.
_LONG = 90_000

# A file of fewer takes less time to compile than to read headers for it and to link it.
_SHORT = 30_000

# A kernel with so many loops that fill a vector number by number has them as loops: unrolled, they
# take most of the C++ compiler's time, and such a kernel waits for memory anyway.
_MANY = 16

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
class Kernel:
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
        if len(_UNROLLED.findall(body)) >= _MANY:
            body = _UNROLLED.sub("#pragma GCC unroll 1", body)
        return f"namespace kernels_{name} {{\n{body}\n}}\n"


def kernel_of(argument_types: Sequence[str], source: str) -> Kernel | None:
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
    return Kernel(tuple(argument_types), source, body)


def source_of(kernels: dict[str, Kernel]) -> str:
    functions = "".join(_FUNCTION % {"name": name} for name in kernels)
    methods = "\n".join(_METHOD % {"name": name} for name in kernels)
    return "".join(
        [
            "#include <torch/csrc/inductor/cpp_prefix.h>\n",
            *(kernel.named(name) for name, kernel in kernels.items()),
            _BINDINGS % {"functions": functions, "methods": methods},
        ]
    )


def filled(kernels: dict[str, Kernel]) -> tuple[list[dict[str, Kernel]], dict[str, Kernel]]:
    """Files of kernels in their order, each as soon as it is long enough, and what is left over."""
    files: list[dict[str, Kernel]] = []
    rest: dict[str, Kernel] = {}
    for name, kernel in kernels.items():
        rest[name] = kernel
        if _length(rest) >= _LONG:
            files.append(rest)
            rest = {}
    return files, rest


def in_files(kernels: dict[str, Kernel], threads: int) -> list[dict[str, Kernel]]:
    """Distribute kernels over files.

    Args:
        kernels: By name, in their order.
        threads: How many files are compiled at the same time. With several, those that
            were `filled` are on their way (see ``early``), and the rest is distributed evenly,
            over fewer files if these would be short.
    """
    files, rest = filled(kernels) if threads > 1 else ([], kernels)
    length = _length(rest)
    worthwhile = min(threads, -(-length // _SHORT))
    count = min(len(rest), max(worthwhile, -(-length // _LARGEST)))
    last: list[dict[str, Kernel]] = [{} for _ in range(count)]
    for name in sorted(rest, key=lambda name: -len(rest[name].source)):
        shortest = min(last, key=_length)
        shortest[name] = rest[name]
    return files + last


def _length(kernels: dict[str, Kernel]) -> int:
    return sum(len(kernel.source) for kernel in kernels.values())
