"""Products in the modules that Inductor generates: see Note [Matrix products]."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from funcaot._torch.dynamo.compile_lock import replaced_here
from funcaot._torch.inductor import products
from funcaot._torch.inductor.products import Matrix, Place, matrix
from funcaot._torch.tensors.sizes.shapes import integers

# Kernels that Inductor calls, and whether the first argument is a bias.
_KERNELS = {
    "extern_kernels.mm": False,
    "extern_kernels.bmm": False,
    "extern_kernels.addmm": True,
    "extern_kernels.baddbmm": True,
}


class _Operand(NamedTuple):
    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def matrix(self) -> Matrix:
        return matrix(self.size, self.stride, self.offset)


def _operand(node: Any) -> _Operand | None:
    """A tensor in generated code: the variable that holds its memory, and its place there."""
    from torch._inductor import ir

    node = _unboxed(node)
    is_view = isinstance(node, ir.ReinterpretView)
    owner = _unboxed(node.data) if is_view else node
    if not isinstance(owner, ir.Buffer) or not isinstance(owner.layout, ir.FixedLayout):
        return None
    layout = node.layout
    if layout.device.type != "cpu" or layout.dtype != torch.float32:
        return None
    size, stride, offset = map(integers, (layout.size, layout.stride, (layout.offset,)))
    if size is None or stride is None or offset is None or (any(offset) and not is_view):
        return None
    return _Operand(owner.codegen_reference(), size, stride, *offset)


def _unboxed(node: Any) -> Any:
    from torch._inductor import ir

    while isinstance(node, ir.MutableBox):
        node = node.data
    return node


def _expanded(bias: _Operand, shape: tuple[int, ...]) -> Place | None:
    """The place of a bias as if it had this shape."""
    missing = len(shape) - len(bias.size)
    size, stride = (1,) * missing + bias.size, (0,) * missing + bias.stride
    pairs = list(zip(size, shape, strict=True))
    if any(own not in (1, wanted) for own, wanted in pairs):
        return None
    steps = [0 if own == 1 else step for own, step in zip(size, stride, strict=True)]
    batch_stride, row_stride, column_stride = [0] * (3 - len(shape)) + steps
    return Place(bias.offset, batch_stride, row_stride, column_stride)


def _call(node: Any) -> tuple[tuple[int, ...], list[str]] | None:
    """The plan of a node's product and the variables it works on; None if it isn't one of ours."""
    from torch._inductor.utils import parallel_num_threads

    has_bias = _KERNELS.get(node.python_kernel_name)
    if has_bias is None or node.output_view is not None or node.constant_args:
        return None
    if any(name not in ("alpha", "beta") or value != 1 for name, value in node.kwargs.items()):
        return None
    found = [_operand(each) for each in (*node.inputs, node)]
    operands = [each for each in found if each is not None]
    if len(operands) != len(found) or len(operands) != 3 + has_bias:
        return None
    *_, left, right, result = operands
    bias = _expanded(operands[0], result.size) if has_bias else None
    if has_bias and bias is None:
        return None
    numbers = products.plan(
        left.matrix, right.matrix, result.matrix, bias, threads=parallel_num_threads()
    )
    return None if numbers is None else (numbers, [each.name for each in operands])


@contextlib.contextmanager
def taken_over() -> Iterator[str]:
    """Let modules that Inductor generates run their products here.

    Yields:
        What tells such modules from others in Inductor's caches.
    """
    if not products.available():
        yield ""
        return
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    original = PythonWrapperCodegen.generate_extern_kernel_out

    def generate(wrapper: Any, node: Any) -> None:
        found = _call(node) if type(wrapper) is PythonWrapperCodegen else None
        if found is None:
            original(wrapper, node)
            return
        numbers, names = found
        node.codegen_comment(wrapper)
        wrapper.add_import_once(f"from {products.__name__} import native, packed")
        wrapper.add_import_once("run_product = native().run")
        wrapper.writeline(f"run_product({_named(wrapper, numbers)}, {', '.join(names)})")

    with replaced_here(PythonWrapperCodegen, "generate_extern_kernel_out", generate):
        yield f" products {torch.get_num_threads()}"


def _named(wrapper: Any, numbers: tuple[int, ...]) -> str:
    """The variable of a plan in a generated module; equal products share one."""
    known = wrapper.src_to_kernel
    definition = f"packed({', '.join(str(int(number)) for number in numbers)})"
    if definition not in known:
        known[definition] = f"product_{len(known)}"
        wrapper.header.writeline(f"{known[definition]} = {definition}")
    return known[definition]
