"""What arrays, rows of bytes and streams in memory hold: ``reader`` compares it in each call.

``state`` looks at it around a capture: what a function writes there, it would write once.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

from funcaot.aot.closure.look import module_of

__all__ = [
    "array_contents",
    "compared",
    "has_contents",
    "is_array",
    "put_contents",
    "whole_contents",
]

# Of a larger one, a number stands for its bytes where it is compared.
_LARGE = 1 << 16
_ARRAYS = {
    ("builtins", "bytearray"),
    ("builtins", "memoryview"),
    ("array", "array"),
    ("numpy", "ndarray"),
}
_OF_C = [("_ctypes", name) for name in ("_SimpleCData", "Structure", "Union", "Array")]
_HASHES = ("_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha3", "_sha256", "_sha512")


def _bases(value: Any) -> list[tuple[str, str]]:
    return [(module_of(kind), kind.__name__) for kind in type(value).__mro__[:-1]]


def _reading(value: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    """What reads the contents of such a value; None of another one."""
    for base in _bases(value):
        if base in _READ:
            return _READ[base]
    return _digest if module_of(type(value)).startswith(_HASHES) else None


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array or a row of bytes."""
    return any(base in _ARRAYS for base in _bases(value))


def has_contents(value: Any) -> bool:
    """Whether a value holds what only it knows, and what can be looked at.

    What is printed is none of it: a capture prints once, as the documentation says.
    """
    printing = value is sys.stdout or value is sys.stderr
    return not printing and _reading(value) is not None


def array_contents(value: Any) -> tuple[Any, ...]:
    """What such a value holds, as it is compared."""
    return compared(whole_contents(value))


def compared(contents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Contents, with a number that stands for many bytes."""
    return tuple(
        hash(part) if isinstance(part, bytes) and len(part) > _LARGE else part for part in contents
    )


def whole_contents(value: Any) -> tuple[Any, ...]:
    """What such a value holds, whatever its size."""
    read = _reading(value) or _digest
    return (type(value), *read(value))


def _digest(value: Any) -> tuple[Any, ...]:
    return (value.copy().hexdigest(),)


def _of_numpy(values: Any) -> tuple[Any, ...]:
    masked = getattr(sys.modules.get("numpy.ma"), "masked", None)
    if values is masked:  # It minds being read, and never changes.
        return ("masked",)
    if values.dtype.hasobject:
        return (values.shape, tuple(map(_item, values.ravel().tolist())))
    layout = (str(values.dtype), values.shape, values.strides, values.flags.writeable)
    return (*layout, values.tobytes())


def _item(value: Any) -> Any:
    """An item of an array of objects; ``1``, ``1.0`` and ``True`` are three."""
    plain = type(value) in (int, float, complex, bool, str, bytes)
    return (type(value), repr(value)) if plain else id(value)


def _of_buffer(value: Any) -> tuple[Any, ...]:
    return (memoryview(value).tobytes(),)


def _of_stream(stream: Any, kind: Any) -> tuple[Any, ...]:
    if stream.closed:
        return (None, None)
    return (kind.getvalue(stream), kind.tell(stream))


_READ: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("builtins", "bytearray"): lambda value: (bytes(value),),
    ("builtins", "memoryview"): lambda value: (value.format, value.shape, value.tobytes()),
    ("array", "array"): lambda value: (value.typecode, value.tobytes()),
    ("numpy", "ndarray"): _of_numpy,
    ("_io", "BytesIO"): lambda value: _of_stream(value, io.BytesIO),
    ("_io", "StringIO"): lambda value: _of_stream(value, io.StringIO),
    ("mmap", "mmap"): _of_buffer,
    **dict.fromkeys(_OF_C, _of_buffer),
    ("decimal", "Context"): lambda value: (repr(value),),
    ("threading", "Event"): lambda value: (vars(value).get("_flag"),),
}


def put_contents(value: Any, before: tuple[Any, ...]) -> None:
    """Give a value what it held, where that can be written back."""
    data = before[-1]
    if isinstance(value, io.BytesIO | io.StringIO):
        if not value.closed:
            value.seek(0)
            value.truncate()
            value.write(before[1])
            value.seek(data)
    elif isinstance(value, bytearray):
        value[:] = data
    elif module_of(type(value)) == "array":
        del value[:]
        value.frombytes(data)
    elif isinstance(data, bytes):
        # One that has another size, or can't be written to any more, stays as it is.
        with contextlib.suppress(TypeError, ValueError, BufferError):
            memoryview(value).cast("B")[:] = data
