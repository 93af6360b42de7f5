"""Private names of AOTInductor: from a functional graph to a package of compiled code."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.dynamo.compile_lock import compiling
from funcaot._torch.inductor import casts, special_values
from funcaot._torch.inductor.inductor import eager_random_numbers
from funcaot._torch.inductor.mended import code_mended, prepare
from funcaot._torch.patches import applied


def compile_package(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    dynamic_shapes: Any,
) -> io.BytesIO:
    """Compile a graph ahead of time.

    Args:
        module: Functional, decomposed graph of plain tensors; constants are its buffers.
        inputs: Example tensors.
        dynamic_shapes: As ``torch.export.export`` takes it, for the inputs.

    Returns:
        The package, in memory: where a disk is full, torch's writer ends the process.

    Raises:
        Exception: Whatever torch raises.
    """
    with compiling(), torch.no_grad(), _quiet():
        prepare(module)
        from torch._inductor import aoti_compile_and_package

        program = _exported(module, tuple(inputs), dynamic_shapes)
        package = io.BytesIO()
        with _mended(), _unspecialized(program):
            aoti_compile_and_package(program, package_path=package)  # type: ignore
        return package


@contextlib.contextmanager
def _unspecialized(program: Any) -> Iterator[None]:
    """See that the compiler takes no open size for a number; it says nothing of that by itself.

    Raises:
        SpecializedError: If it does.
    """
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    open_ones = [
        size
        for value in values
        if isinstance(value, torch.Tensor)
        for size in value.shape
        if isinstance(size, torch.SymInt) and not size.node.expr.is_number
    ]
    yield
    for size in open_ones:
        environment = size.node.shape_env
        if environment.replace(size.node._expr).is_number:
            raise SpecializedError(str(environment.replace(size.node._expr)))


class SpecializedError(Exception):
    """The compiler took an open size for the number that it is in the example."""


def _exported(module: fx.GraphModule, inputs: tuple[torch.Tensor, ...], dynamic_shapes: Any) -> Any:
    """The graph as torch's own record.

    Torch proves by intervals what it assumes about sizes, which fails for ``n * n - n >= 1``. Such
    a graph looks at it in each call instead.
    """
    from torch._dynamo.exc import UserError

    try:
        return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=False)
    except UserError:
        if dynamic_shapes is None:
            raise
        return torch.export.export(
            module,
            inputs,
            dynamic_shapes=dynamic_shapes,
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch uses parts of itself that are deprecated; its user can't do anything about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        # Not those of this package: they say what is lost without a patch.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch(\.|$)")
        yield


@contextlib.contextmanager
def _mended() -> Iterator[None]:
    """What is mended in Inductor where a function is compiled in its process, and for packages."""
    from funcaot._torch.inductor.packages.complex_numbers import in_parts  # It imports Inductor.

    with (
        eager_random_numbers(),
        applied("casts", casts.as_written, None),
        special_values.exact_passes(),
        code_mended(),
        in_parts(),
    ):
        yield
