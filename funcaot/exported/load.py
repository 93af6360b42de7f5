"""``funcaot.load``: an artifact as a callable; no pipeline and no compiler is imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.tensors import artifacts
from funcaot.errors import ArgumentError, ArtifactError, UnsupportedError
from funcaot.exported import expressions, files, hardware, trees
from funcaot.exported.loading.checks import Check
from funcaot.exported.loading.keywords import in_order
from funcaot.exported.loading.usual import UNUSUAL, usual_call
from funcaot.exported.signature import STRIDED, ArtifactSignature, Made, Part


def load(path: str | os.PathLike[str]) -> Loaded:
    """Load what ``funcaot.export`` wrote.

    The file holds machine code, which runs in this process: load only files that you trust as you
    would trust a program. Its signature is JSON; nothing is unpickled, and nothing is imported
    because the file names it.

    Args:
        path: The file.

    Returns:
        A callable with the signature of the call that was exported.

    Raises:
        ArtifactError: If there is no such file, if it isn't an artifact, or if it was made by
            another version of torch or for another machine.

    Example:
        >>> import funcaot, tempfile, torch
        >>> path = funcaot.export(
        ...     lambda x: x.sin(), (torch.rand(3),), path=tempfile.mkdtemp() + "/sine.pt2"
        ... )
        >>> sine = funcaot.load(path)
        >>> sine
        <funcaot artifact lambda_: args[0] float32[3]>
        >>> sine(torch.zeros(3))
        tensor([0., 0., 0.])
    """
    signature = files.read_signature(path)
    name = os.path.abspath(os.fsdecode(path))
    found = torch.__version__
    if _release(signature.torch) != _release(found):
        raise ArtifactError(
            f"{name} was compiled by another version of torch.",
            expected=f"torch {signature.torch}",
            got=f"torch {found}",
            remedy="export the function again with this version, or run it with that one.",
        )
    hardware.check(name, signature.hardware)
    try:
        runners = [artifacts.runner(name, model) for model in signature.models]
    except RuntimeError as error:
        raise ArtifactError(
            f"{name} has a signature of funcaot, but its code can't be loaded: {error}",
            remedy="export the function again; the file may be damaged, or the folder for "
            "temporary files may be full or forbid to run code.",
        ) from error
    return Loaded(signature, runners)


def _release(version: str) -> str:
    """A version without what it was built for."""
    return version.partition("+")[0]


class Loaded:
    """An artifact that can be called like the function that was exported.

    Calls may come from several threads; they run one after the other. Results don't require grad.

    Attributes:
        signature: Structure, shapes, dtypes and bounds of its inputs, and what it was made by.
    """

    def __init__(
        self,
        signature: ArtifactSignature,
        runners: Sequence[tuple[Callable[[list[Any]], Sequence[Any]], Any]],
    ) -> None:
        """Make what ``load`` returns.

        Args:
            signature: What the artifact says of itself.
            runners: For each of its models the compiled graph, on a list of tensors, and what
                holds the code.
        """
        self.signature = signature
        self._what = f"The artifact {signature.name}"
        self._args, self._kwargs = signature.arguments["items"]
        self._passed = len(self._args["items"]), self._kwargs["keys"]
        self._tensors = tuple(Check(tensor, signature, self._what) for tensor in signature.tensors)
        self._parameters = tuple(
            Check(tensor, signature, self._what) for tensor in signature.parameters
        )
        checks = {"argument": self._tensors, "parameter": self._parameters}
        self._program, *parts = (
            _Program(own, runner, checks, self._what)
            for own, runner in zip((signature, *signature.parts), runners, strict=True)
        )
        self._parts = [
            (tuple(part.bounds.items()), program)
            for part, program in zip(signature.parts, parts, strict=True)
        ]
        self._derived = tuple(signature.derived.items())
        self._usual = usual_call(signature, self._program.ran)

    def __call__(
        self, *args: Any, parameters: Mapping[str, torch.Tensor] | None = None, **kwargs: Any
    ) -> Any:
        """Run it.

        Args:
            *args: As in the call that was exported, with other values, and other sizes within the
                bounds of its dims; by position or by keyword, as the function takes them.
            parameters: The tensors that the function closes over, by name, if it was exported
                with ``parameters="inputs"``; more may be in it, as in a ``state_dict``.
            **kwargs: See ``args``.

        Raises:
            ArgumentError: If the arguments don't look as in that call.
            UnsupportedError: Under a transform, or where a derivative is asked for.
        """
        if self._usual is not None and parameters is None and not kwargs:
            result = self._usual(args)
            if result is not UNUSUAL:
                return result
        self._refuse_transforms()
        count, keys = self._passed
        if len(args) != count or len(kwargs) != len(keys):
            names = self.signature.names
            args, kwargs = in_order(names, self._passed, (args, kwargs), self._what)
        given = [
            *trees.leaves_of(self._args, args, self._what, "args"),
            *trees.leaves_of(self._kwargs, kwargs, self._what, "kwargs"),
        ]
        sizes: dict[str, int] = {}
        for check, tensor in zip(self._tensors, given, strict=True):
            check(tensor, sizes)
        for first, second in self.signature.same:
            self._require_same(given, first, second)
        for name, expression in self._derived:
            self._require_derived(name, expressions.value({"size": expression}, sizes), sizes)
        places = {"argument": given, "parameter": self._brought(parameters, sizes)}
        return self._serving(sizes)(places, sizes)

    def _serving(self, sizes: Mapping[str, int]) -> _Program:
        """The program for sizes."""
        for bounds, program in self._parts:
            if all(low <= sizes[name] <= high for name, (low, high) in bounds):
                return program
        return self._program

    def _require_derived(self, name: str, wanted: int, sizes: Mapping[str, int]) -> None:
        if sizes[name] != wanted:
            raise ArgumentError(
                f"{self._what} was given tensors whose sizes don't belong together.",
                expected=f"{wanted} for {name}",
                got=str(sizes[name]),
                remedy="pass tensors whose sizes agree.",
            )

    def _brought(
        self, parameters: Mapping[str, torch.Tensor] | None, sizes: dict[str, int]
    ) -> list[torch.Tensor]:
        """The parameters of a call, in order."""
        if not self._parameters:
            if parameters is not None:
                raise ArgumentError(
                    f"{self._what} was given parameters, and has its own inside.",
                    remedy='export with parameters="inputs" to pass them.',
                )
            return []
        names = [check.tensor.name for check in self._parameters]
        missing = [name for name in names if name not in (parameters or {})]
        if parameters is None or missing:
            raise ArgumentError(
                f"{self._what} needs parameters that it wasn't given.",
                expected=f"parameters={{name: tensor}} with {names}",
                got="none" if parameters is None else f"no {missing}",
                remedy="pass parameters=module.state_dict(), or the tensors by these names.",
            )
        found = [parameters[name] for name in names]
        for check, tensor in zip(self._parameters, found, strict=True):
            check(tensor, sizes)
        for name, first in self.signature.tied.items():
            if name in parameters and not _is_one(parameters[name], parameters[first]):
                raise ArgumentError(
                    f"{self._what} was exported with one tensor for the parameters {first} and "
                    f"{name}, and was given two.",
                    expected="equal tensors for both",
                    remedy="export the function with parameters that aren't tied.",
                )
        return found

    def _require_same(self, given: Sequence[Any], first: int, second: int) -> None:
        if given[first] is given[second]:
            return
        names = self.signature.tensors[first].name, self.signature.tensors[second].name
        raise ArgumentError(
            f"{self._what} was exported with one tensor for {names[0]} and {names[1]}, and was "
            "called with two.",
            expected="one object for both",
            remedy="export it with two tensors.",
        )

    def _refuse_transforms(self) -> None:
        if artifacts.is_transformed() or artifacts.carries_tangents():
            raise UnsupportedError(
                f"{self._what} was called under a transform, forward mode or a capture, and "
                "computes values only.",
                remedy="export the function under the transform: "
                "funcaot.export(torch.func.vmap(f), ...), and call that.",
            )

    def __repr__(self) -> str:
        """One line."""
        tensors = ", ".join(f"{tensor.name} {tensor}" for tensor in self.signature.tensors)
        return f"<funcaot artifact {self.signature.name}: {tensors or 'no tensors'}>"


class _Program:
    """One compiled graph, with what it is given and what is made of what it returns."""

    def __init__(
        self,
        signature: ArtifactSignature | Part,
        runner: tuple[Callable[[list[Any]], Sequence[Any]], Any],
        checks: Mapping[str, Sequence[Check]],
        what: str,
    ) -> None:
        self._run, self._library = runner
        self._what = what
        self._operands = tuple((kind, i, checks[kind][i]) for kind, i in signature.inputs)
        self._made = tuple(_maker(made) for made in signature.made)
        self._build = trees.builder(signature.results)

    def __call__(self, given: Mapping[str, Sequence[Any]], sizes: Mapping[str, int]) -> Any:
        """The result for what a call has."""
        operands = [check.laid_out(given[kind][i]) for kind, i, check in self._operands]
        with torch.no_grad():
            made: list[Any] = []
            places = {**given, "output": self._outputs(operands), "made": made}
            for make in self._made:
                made.append(self._viewed(make, places, sizes))
        return self._build(made, sizes)

    def _outputs(self, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the compiled graph returns; it shares memory with nothing else."""
        given = {operand.untyped_storage().data_ptr() for operand in operands}
        if 0 in given:
            given.remove(0)
            self._require_memory(operands)
        if artifacts.casts_automatically():
            with torch.autocast("cpu", enabled=False):
                return self.ran(operands, given)
        return self.ran(operands, given)

    def ran(self, operands: list[torch.Tensor], given: set[int]) -> list[torch.Tensor]:
        """Run the compiled graph on tensors, the places of whose memory are ``given``."""
        outputs = []
        for output in self._ran(operands):
            place = output.untyped_storage().data_ptr()
            outputs.append(output.clone() if place in given else output)
            if output.numel():
                given.add(place)
        return outputs

    def _require_memory(self, operands: Sequence[torch.Tensor]) -> None:
        """Compiled code would read from where there is nothing."""
        for (kind, index, check), operand in zip(self._operands, operands, strict=True):
            if operand.numel() and not operand.untyped_storage().data_ptr():
                raise ArgumentError(
                    f"{self._what} was given {kind} {index}, {check.tensor}, whose memory was "
                    "freed.",
                    expected="a tensor with its values",
                    got="a storage of 0 bytes",
                    remedy="gather it first, where FSDP or the like freed it.",
                )

    def _ran(self, operands: list[torch.Tensor]) -> Sequence[Any]:
        try:
            return self._run(operands)
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            if "alloc" in said:  # There isn't memory enough.
                raise
            raise ArgumentError(
                f"{self._what} failed on the values that it was given: {said}.",
                expected="values that the exported function itself can be called with",
                remedy="look for an index that is out of bounds or a matrix that can't be "
                "factorized; the exported function, called with the same tensors, says which.",
            ) from error

    def _viewed(
        self, make: Callable[..., Any], places: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> Any:
        """A tensor of the result.

        Raises:
            ArgumentError: If it is a view of an argument that can't be viewed so.
        """
        try:
            return make(places, sizes)
        except RuntimeError as error:
            raise ArgumentError(
                f"{self._what} returns a view of an argument, and the argument that it was given "
                f"doesn't lie in memory in a way that has such a view: {error}",
                expected="tensors that lie in memory as in the exported call",
                remedy="pass .contiguous() of it, or what has the strides of the example.",
            ) from None


def _is_one(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors hold the same; a ``state_dict`` has an object for each name."""
    if first is second or (first.data_ptr(), first.stride()) == (
        second.data_ptr(),
        second.stride(),
    ):
        return True
    return torch.equal(first, second)


def _maker(made: Made) -> Callable[[Mapping[str, Sequence[Any]], Mapping[str, int]], Any]:
    """How a tensor of the result is made of what a call has."""
    kind, index = made.start
    steps = [_step(step) for step in made.steps]

    def make(places: Mapping[str, Sequence[Any]], sizes: Mapping[str, int]) -> Any:
        tensor = places[kind][index]
        for step in steps:
            tensor = step(tensor, sizes)
        return tensor

    return make


def _step(step: Mapping[str, Any]) -> Callable[[torch.Tensor, Mapping[str, int]], torch.Tensor]:
    """A view op; no other is called because a file names it."""
    name, arguments, keywords, item = step["op"], step["args"], step["kwargs"], step["item"]
    if name == STRIDED:
        return functools.partial(_strided, arguments)
    op = getattr(getattr(torch.ops.aten, name), step["overload"])
    if not artifacts.is_view(op):
        raise ArtifactError(
            f"An artifact asks for {op}, which isn't a view.",
            remedy="export the function again.",
        )

    def apply(tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        given = [expressions.value(argument, sizes) for argument in arguments]
        named = {key: expressions.value(value, sizes) for key, value in keywords.items()}
        result = op(tensor, *given, **named)
        return result if item is None else result[item]

    return apply


def _strided(
    arguments: Sequence[Any], tensor: torch.Tensor, sizes: Mapping[str, int]
) -> torch.Tensor:
    """A view whose place in memory is counted from where the tensor begins."""
    shape, stride, offset = (expressions.value(argument, sizes) for argument in arguments)
    return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
