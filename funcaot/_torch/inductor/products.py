"""Matrix products of a graph for the CPU, in single precision and of known sizes, by brgemm.

Note [Matrix products]: Inductor leaves products to ``torch.mm``, which asks MKL. For the matrices
of small networks most of a step is spent there, and MKL is slow where it doesn't know the
processor: on AMD it uses half of the vectors' width. oneDNN, which comes with torch too, has
kernels for any x86 processor, of which Inductor's own templates use ``brgemm`` for constant
weights. It needs no packing: a product of 256x64x256 takes 37 µs instead of 88. ``products.cpp``
cuts a product into blocks as a plan says; it is compiled once for a machine, not for a graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

_LOG = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("products.cpp")
# at::native::cpublas::brgemm of floats.
_SYMBOL = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"

# As in products.cpp: the largest blocks that it transposes.
_SIDE, _DEPTH = 64, 384
_DEPTH_OF_DEEP = 256
# Elements of a matrix that stay in a core's cache while all of the other's rows go past.
_CACHED = 2**16
# Multiplications that are worth a thread: about 5 µs.
_PER_THREAD = 2**19
# A vector by a matrix is as fast as memory is, but for what it takes to ask torch for it.
_LARGEST_VECTOR = 2**17
# Where MKL uses all of the processor, it is as fast from here on.
_LARGEST_WITH_MKL, _WIDEST_WITH_MKL = 2**24, 2**17


class Place(NamedTuple):
    """Where a matrix, or a batch of them, lies in a tensor's memory, in elements."""

    offset: int
    batch_stride: int
    row_stride: int
    column_stride: int


class Matrix(NamedTuple):
    """A batch of matrices: how many, their sizes, and where they lie."""

    batches: int
    rows: int
    columns: int
    place: Place

    @property
    def by_rows(self) -> bool:
        """Whether each row is contiguous, and rows don't overlap."""
        return self.place.column_stride == 1 and self.place.row_stride >= self.columns

    @property
    def by_columns(self) -> bool:
        """Whether each column is contiguous, and columns don't overlap."""
        return self.place.row_stride == 1 and self.place.column_stride >= self.rows


def matrix(size: Sequence[int], stride: Sequence[int], offset: int) -> Matrix:
    """A tensor of two or three dimensions as matrices.

    The stride of a dimension of one element, which may be anything, is made to fit.
    """
    batches, batch_stride = (size[0], stride[0]) if len(size) == 3 else (1, 0)
    (rows, columns), (row_stride, column_stride) = size[-2:], stride[-2:]
    if columns == 1:
        column_stride = 1 if row_stride >= 1 else column_stride
    if rows == 1:
        row_stride = max(columns, 1) if column_stride == 1 else 1
    return Matrix(batches, rows, columns, Place(offset, batch_stride, row_stride, column_stride))


class Blocks(NamedTuple):
    """How a product is cut.

    Attributes:
        threads: How many work on it.
        row_block: Rows of the result that a thread takes at once.
        column_block: Columns of the result that a thread takes at once.
        panel: Columns of the right matrix in one call of brgemm.
        depth_block: Terms of the sums in one call of brgemm.
    """

    threads: int
    row_block: int
    column_block: int
    panel: int
    depth_block: int


def _even(total: int, largest: int, parts: int, step: int) -> int:
    """A block's size: ``parts`` blocks or a multiple, at most ``largest``, a multiple of a step."""
    parts *= -(-total // (largest * parts))
    size = -(-total // parts)
    return min(-(-size // step) * step, largest, total)


def cut(left: Matrix, right: Matrix, threads: int) -> Blocks:
    """Cut a product into blocks for threads and caches."""
    rows, columns, depth = left.rows, right.columns, left.columns
    threads = max(1, min(threads, left.batches * rows * columns * depth // _PER_THREAD))
    shared = 1 if left.batches % threads == 0 or left.batches >= 4 * threads else threads
    many_columns = columns >= 32 * threads
    by_columns = many_columns and (not right.by_rows or rows < 16 * threads)
    row_parts, column_parts = (1, shared) if by_columns else (shared, 1)
    row_block = _even(rows, rows if left.by_rows else _SIDE, row_parts, 8)
    column_block = _even(columns, columns, column_parts, 16)
    depth_block = depth if depth <= _DEPTH else _DEPTH_OF_DEEP
    panel = column_block
    if not right.by_rows or depth_block * columns > _CACHED:
        panel = _even(column_block, _SIDE, 1, 16)
    return Blocks(threads, row_block, column_block, panel, depth_block)


def plan(
    left: Matrix, right: Matrix, result: Matrix, bias: Place | None, threads: int
) -> tuple[int, ...] | None:
    """The numbers that products.cpp works by, or None where ``torch.mm`` is the better choice.

    Args:
        left: Matrices of shape ``(rows, depth)``.
        right: Matrices of shape ``(depth, columns)``.
        result: Where the products go.
        bias: What is added to them, expanded to their shape.
        threads: How many there are.
    """
    by_rows_or_columns = all(each.by_rows or each.by_columns for each in (left, right))
    if not by_rows_or_columns or not result.by_rows:
        return None
    work = left.rows * right.columns * left.columns
    if left.batches * work == 0 or right.columns == 1:
        return None
    if left.rows == 1 and (not right.by_rows or work > _LARGEST_VECTOR):
        return None
    if _mkl_is_fast():
        if work > _LARGEST_WITH_MKL or left.columns * right.columns > _WIDEST_WITH_MKL:
            return None
    blocks = cut(left, right, threads)
    return (
        blocks.threads,
        *(left.batches, left.rows, right.columns, left.columns),
        *blocks[1:],
        *(not left.by_rows, not right.by_rows, bias is not None),
        *left.place,
        *right.place,
        *result.place,
        *(bias or Place(0, 0, 0, 0)),
    )


def packed(*numbers: int) -> bytes:
    """A plan as products.cpp takes it."""
    return struct.pack(f"{len(numbers)}q", *numbers)


@functools.cache
def _mkl_is_fast() -> bool:
    """Whether MKL uses the widest vectors there are: AVX2 everywhere, AVX-512 on Intel only."""
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        return True
    with contextlib.suppress(OSError):
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    return "Intel" in platform.processor()


def native() -> Any:
    """The module of products.cpp; it is compiled where it never was.

    Raises:
        ImportError: This torch or this machine has no brgemm, or no C++ compiler.
    """
    found = _native_or_reason()
    if isinstance(found, str):
        raise ImportError(found)
    return found


@functools.cache
def _native_or_reason() -> Any:
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "brgemm has no kernel for this processor"
    library = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:
        if not hasattr(ctypes.CDLL(str(library)), _SYMBOL):
            return "this torch has no brgemm"
        from funcaot._torch.inductor.kernels import load

        return load(_SOURCE.read_text())
    except Exception as error:  # noqa: BLE001 - whatever it is, torch.mm does without
        _LOG.info("Products are left to torch.mm: %s", error)
        return str(error)


def _is_wanted() -> bool:
    """Whether products may be ours: nobody asked for less precision or no oneDNN."""
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # precision was set both in the old way and in the new one
        return False
    onednn: Any = torch.backends.mkldnn
    return exact and onednn.is_available() and bool(onednn.enabled)


def available() -> bool:
    """Whether products are taken over now."""
    return _is_wanted() and not isinstance(_native_or_reason(), str)
