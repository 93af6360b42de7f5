"""``funcaot.export``: a function is captured, compiled ahead of time and written to a file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.dynamo.dynamo import without_dynamo
from funcaot._torch.inductor import value_patches
from funcaot._torch.inductor.packages.aoti import SpecializedError, compile_package
from funcaot._torch.levels.thread_state import StateKept
from funcaot.aot.graph.settings import Settings
from funcaot.backends import inductor
from funcaot.errors import FuncaotError, StageError, UnsupportedError
from funcaot.exported import files
from funcaot.exported.artifact import Artifact
from funcaot.exported.call import ExportedCall, Parameters
from funcaot.exported.parts import captured_in_parts
from funcaot.exported.sizes.dims import read_dynamic_shapes


def export(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | os.PathLike[str],
    dynamic_shapes: Any = None,
    parameters: Parameters = "baked",
) -> str:
    """Compile a function ahead of time and write it to a file, which ``funcaot.load`` runs.

    The function may compute derivatives, of any order and by any transform. It is captured once,
    as ``funcaot.compile`` does it: its Python code runs on tensors without values. What an
    artifact can't do is refused before anything is compiled.

    An artifact computes values. Its results don't require grad; export the derivative itself.

    Args:
        function: A function or an ``nn.Module``, compiled by funcaot or not.
        args: Example arguments: tensors on the CPU, numbers, strings and None, in tuples, named
            tuples, lists and dictionaries. What isn't a tensor is a constant of the artifact.
        kwargs: Example keyword arguments.
        path: Where to write, ending in ``.pt2``. A file that is there is replaced as a whole.
        dynamic_shapes: As in ``torch.export.export``: a ``torch.export.Dim`` with bounds for each
            dimension that may have other sizes, in a dictionary by argument or a tuple. Sizes of
            0 and 1 aren't among them.
        parameters: ``"baked"`` writes the tensors that the function closes over (parameters,
            buffers) into the file. With ``"inputs"`` a call brings them, by name.

    Returns:
        The path.

    Raises:
        UnsupportedError: If the function does more than compute its result, reads values of
            tensors, draws random numbers, or calls what only Python can run.
        ArgumentError: If ``dynamic_shapes`` doesn't fit the arguments.
        ArtifactError: If the file can't be written.
        StageError: If the compiler fails.
        Exception: Whatever the function raises, unchanged.

    Example:
        >>> import funcaot, tempfile, torch
        >>> def energy(x):
        ...     return (x.sin() ** 2).sum()
        >>> atoms = torch.export.Dim("atoms", min=2, max=64)
        >>> path = funcaot.export(
        ...     torch.func.grad_and_value(energy),
        ...     (torch.rand(5, 3),),
        ...     path=tempfile.mkdtemp() + "/energy.pt2",
        ...     dynamic_shapes={"x": {0: atoms}},
        ... )
        >>> gradient, value = funcaot.load(path)(torch.ones(8, 3))
        >>> gradient.shape
        torch.Size([8, 3])
    """
    call = ExportedCall.of(function, args, kwargs, parameters)
    wanted = read_dynamic_shapes(call, dynamic_shapes)
    with files.whole(path) as place:
        settings = Settings(inductor.COMPILER, call.name)
        with settings.lock, StateKept(), without_dynamo():
            artifacts, signature = captured_in_parts(call, wanted, settings)
            packages = [_compiled(artifact, call.name) for artifact in artifacts]
        files.write(place, packages, signature)
    return os.fspath(path)


def _compiled(artifact: Artifact, name: str) -> io.BytesIO:
    """The package that torch makes of the graph.

    Raises:
        StageError: If the compiler fails; ``__cause__`` is its own exception.
    """
    module = artifact.program.module
    if not value_patches.are_usable(module):
        raise UnsupportedError(
            f"{name} can't be exported with this torch: Inductor would compute other values than "
            "eager torch, and what mends that can't be applied.",
            remedy="see the PatchWarning; config.without_patches must not name what mends values.",
        )
    try:
        return compile_package(module, artifact.examples, artifact.dynamic_shapes)
    except FuncaotError:
        raise
    except SpecializedError as error:
        raise UnsupportedError(
            f"{name} can't be exported with open sizes: AOTInductor compiles an operation of it "
            f"for one size only, {error}.",
            remedy="leave dynamic_shapes out, and export an artifact for each size; convolutions "
            "of a batch of one image take a size for a number.",
        ) from None
    except OSError as error:
        raise StageError(
            f"AOTInductor can't write what it makes of {name}: {error}.",
            remedy="TORCHINDUCTOR_CACHE_DIR and TMPDIR have to be folders that may be written to "
            "and have room.",
        ) from error
    except Exception as error:
        if any(map(_is_complex, module.graph.nodes)):
            raise UnsupportedError(
                f"{name} computes with complex numbers, and AOTInductor can't write a package of "
                f"some such operation ({type(error).__name__}: {error}).",
                remedy="compute with real and imaginary parts (torch.view_as_real).",
            ) from error
        raise StageError(
            f"AOTInductor failed on {name}: {type(error).__name__}: {error}",
            remedy="a C++ compiler has to be installed (g++ or clang++ on the PATH, or CXX); if "
            "one is, compile the function with funcaot.compile to see whether it works there.",
        ) from error


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()
