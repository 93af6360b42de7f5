"""Parameters that each rank keeps a part of, gathered where they are used; users call `shard`.

Note [Adjoint]: gathering takes parts to a whole on each rank. Its adjoint takes a gradient on each
rank to the parts of their mean, and the adjoint of that gathers again. So each of the two Functions
is the other's backward, and derivatives of any order are made of them. The mean belongs to it:
each rank has a loss of its own, and what is minimized is their mean.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from funcaot._torch.distributed import collectives, sharded, wrapped
from funcaot.aot.runtime.module import compiled_of
from funcaot.aot.tape.again import computed_again
from funcaot.errors import FuncaotError, UnsupportedError

__all__ = ["shard"]

_NAMES = "_funcaot_sharded"


def shard(module: torch.nn.Module, mesh: Any = None) -> torch.nn.Module:
    """Let each rank keep its part of a module's parameters, to train it at any order.

    Each parameter becomes a ``DTensor`` cut along its first dimension, whose gradient is the mean
    over the ranks. Where the module uses it, it is gathered; a compiled program gathers it again in
    each derivative instead of keeping it. So forces, gradient penalties and Hessian-vector
    products can be taken inside and outside of the module, where ``fully_shard`` can't.

    Args:
        module: It is changed in place: the classes of what is in it, and its parameters, whose
            values are those of rank 0. Buffers stay whole. Compile it afterwards, or what calls it.
        mesh: A ``DeviceMesh`` of one dimension; all ranks by default.

    Returns:
        The module.

    Raises:
        FuncaotError: There is no process group, or the mesh has more dimensions.
        UnsupportedError: The module is compiled, sharded or wrapped already, or its parameters
            aren't plain tensors.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from funcaot.distributed import shard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> module = shard(torch.nn.Linear(3, 2))
        >>> module.weight.shape  # gathered
        torch.Size([2, 3])
        >>> [type(parameter).__name__ for parameter in module.parameters()]
        ['DTensor', 'DTensor']
        >>> dist.destroy_process_group()
    """
    mesh = _mesh(mesh, module)
    parts = list(module.modules())
    for part in parts:
        _check(part)
    known: dict[int, torch.nn.Parameter] = {}
    for part in parts:
        names = [name for name, value in part._parameters.items() if value is not None]
        for name in names:
            given: Any = part._parameters[name]
            if id(given) not in known:
                made = sharded.distributed(given.detach(), mesh)
                known[id(given)] = torch.nn.Parameter(made, requires_grad=given.requires_grad)
            part._parameters[name] = known[id(given)]
        if names:
            part.__class__ = _class(type(part), tuple(names))
    return module


def _mesh(mesh: Any, module: torch.nn.Module) -> Any:
    if not collectives.is_running():
        raise FuncaotError(
            "There is no process group, so there is nobody to share parameters with.",
            remedy="call torch.distributed.init_process_group first; torchrun starts the ranks.",
        )
    if mesh is None:
        kinds = {parameter.device.type for parameter in module.parameters()}
        mesh = sharded.mesh_of_all(kinds.pop() if len(kinds) == 1 else "cpu")
    if mesh.ndim != 1:
        raise FuncaotError(
            "shard was given a mesh that it can't take.",
            expected="a DeviceMesh of one dimension",
            got=f"one of {mesh.ndim} dimensions",
            remedy='pass one of its dimensions: mesh["name"].',
        )
    return mesh


def _check(module: torch.nn.Module) -> None:
    """Refuse what has another idea of its parameters."""
    name = type(module).__name__
    if compiled_of(module) is not None:
        raise UnsupportedError(
            f"{name} is compiled already.", remedy="shard the module first and compile it then."
        )
    if isinstance(module, wrapped.DistributedDataParallel) or wrapped.is_sharded(module):
        raise UnsupportedError(
            f"{name} is wrapped by torch.distributed already.", remedy="shard the module itself."
        )
    if hasattr(type(module), _NAMES):
        raise UnsupportedError(f"{name} is sharded already.", remedy="shard it once.")
    for key, value in module._parameters.items():
        if value is not None and type(value) is not torch.nn.Parameter:
            raise UnsupportedError(
                f"The parameter {key} of {name} is a {type(value).__name__}.",
                remedy="shard modules whose parameters are plain; initialize lazy ones first.",
            )


@functools.cache
def _class(original: Any, names: tuple[str, ...]) -> type:
    """A subclass in which parameters are gathered when they are read."""
    members: dict[str, Any] = {name: property(_reader(name)) for name in names}
    for name in ("__module__", "__qualname__", "__doc__"):
        members[name] = getattr(original, name)
    members[_NAMES] = names
    if original.register_parameter is torch.nn.Module.register_parameter:
        members["register_parameter"] = _register_parameter
    if original.__reduce_ex__ is object.__reduce_ex__ and original.__reduce__ is object.__reduce__:
        members["__reduce_ex__"] = _reduced
    return type(original.__name__, (original,), members)


def _reduced(module: Any, protocol: Any) -> tuple[Any, ...]:
    """How a module is pickled and copied: its class is made again."""
    _, _, *state = object.__reduce_ex__(module, max(2, protocol))
    kind = type(module)
    return (_made_again, (kind.__base__, getattr(kind, _NAMES)), *state)


def _made_again(original: Any, names: tuple[str, ...]) -> Any:
    kind: Any = _class(original, names)
    return kind.__new__(kind)


def _register_parameter(module: Any, name: str, parameter: Any) -> None:
    """What assigning a parameter calls; each rank would train a plain one for itself."""
    if parameter is not None and name in getattr(type(module), _NAMES):
        _check_part(type(module).__name__, name, parameter)
    torch.nn.Module.register_parameter(module, name, parameter)


def _check_part(module: str, name: str, parameter: Any) -> None:
    if not sharded.is_part(parameter):
        raise UnsupportedError(
            f"The parameter {name} of {module}, which is sharded, is to be a "
            f"{type(parameter).__name__} that isn't cut into rows for the ranks.",
            remedy="shard a new layer and put that in place, or copy the values: with "
            "torch.no_grad(): parameter.copy_(distribute_tensor(values, parameter.device_mesh, "
            "parameter.placements)).",
        )


def _reader(name: str) -> Any:
    def read(module: Any) -> Any:
        parameter = module._parameters.get(name)
        if parameter is None:
            return module.__getattr__(name)
        if not sharded.is_distributed(parameter):
            return parameter  # of functional_call, whose caller has it
        _check_part(type(module).__name__, name, parameter)
        (parameter,) = _as_entered(parameter)
        with computed_again():
            return Whole.apply(parameter)

    return read


def _as_entered(tensor: Any) -> tuple[Any]:
    """A tensor as every mode in force passes it on: a capture puts its own in its place."""
    if has_torch_function((tensor,)):
        return handle_torch_function(_as_entered, (tensor,), tensor)  # type: ignore[no-any-return]
    return (tensor,)


def _rows(spec: Any, ranks: int) -> tuple[int, int]:
    """How many rows every part is padded to, and how many of them this rank has.

    Its number is only asked for where ranks have different parts: a program is for the others too.
    """
    count = spec.shape[0]
    most = -(-count // ranks)
    if count == most * ranks:
        return most, most
    return most, max(0, min(most, count - sharded.rank_of(spec) * most))


class Whole(torch.autograd.Function):
    """The whole of a sharded tensor."""

    @staticmethod
    def forward(tensor: Any) -> torch.Tensor:
        """Gather it."""
        spec, part = sharded.spec_of(tensor), sharded.local(tensor)
        ranks, group = sharded.group_of(spec)
        if not spec.shape:
            return part.clone()
        most, own = _rows(spec, ranks)
        padded = functional.pad(part, [0, 0] * (part.dim() - 1) + [0, most - own])
        return collectives.gathered(padded, ranks, group)[: spec.shape[0]].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """The mesh and the shape of the whole."""
        ctx.spec = sharded.spec_of(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Its adjoint."""
        return Mean.apply(gradient, ctx.spec)


class Mean(torch.autograd.Function):
    """The mean over the ranks of a tensor that each has, sharded."""

    @staticmethod
    def forward(tensor: torch.Tensor, spec: Any) -> Any:
        """Sum, scatter and divide."""
        ranks, group = sharded.group_of(spec)
        if not spec.shape:
            return sharded.of_local(collectives.summed(tensor, group) / ranks, spec)
        most, own = _rows(spec, ranks)
        missing = most * ranks - spec.shape[0]
        padded = functional.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, missing])
        part = collectives.summed_part(padded, ranks, group) / ranks
        return sharded.of_local(part[:own].clone(), spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The placements that a gradient has to have."""
        ctx.spec = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Its adjoint, for a gradient that is sharded alike."""
        if gradient.placements != ctx.spec.placements:
            gradient = gradient.redistribute(placements=ctx.spec.placements)
        with computed_again():
            return Whole.apply(gradient), None
