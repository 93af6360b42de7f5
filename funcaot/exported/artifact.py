"""The call that is exported, captured and described; nothing is compiled yet."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.aot.graph import graphs
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.lowering.lower import decomposed
from funcaot.aot.pipeline import compile_forward
from funcaot.aot.segment.forward import Forward
from funcaot.aot.segment.segment import Form
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.signature import read_signature
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.backends import inductor
from funcaot.derivatives.table import load_rules
from funcaot.errors import UnsupportedError
from funcaot.exported import hardware, refusals, trees
from funcaot.exported.call import ExportedCall
from funcaot.exported.loading.keywords import names_of
from funcaot.exported.names import further_names, is_constant, tensor_names
from funcaot.exported.outputs import ResultPlan
from funcaot.exported.program import Program, make_program
from funcaot.exported.signature import ArtifactSignature, TensorSignature, Tree
from funcaot.exported.sizes.asked import failing_at, lines_of
from funcaot.exported.sizes.dims import UNBOUNDED, OpenSizes, check_conditions, opened
from funcaot.exported.sizes.open_dim import OpenDim

# More elements than any tensor has.
_LARGEST = 2**48


@dataclass(frozen=True, eq=False)
class Artifact:
    """All that is needed to compile and to write.

    Attributes:
        program: The graph.
        examples: Its inputs.
        dynamic_shapes: Their open dimensions, as ``torch.export.export`` takes them.
        signature: What the artifact says of itself.
        bounds: The sizes that it serves, if it serves a part of them only.
    """

    program: Program
    examples: tuple[torch.Tensor, ...]
    dynamic_shapes: Any
    signature: ArtifactSignature
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Arguments:
    """The arguments of a call as JSON.

    Attributes:
        tree: Their structure.
        tensors: The tensors, in the order of their indices.
        names: Where each is.
    """

    def __init__(self, call: ExportedCall) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self._what = f"The call of {call.name}"
        parts = [(call.args, "args"), (call.kwargs, "kwargs")]
        items = [trees.described(part, self._leaf, path, self._what) for part, path in parts]
        self.tree: Tree = {"kind": "tuple", "items": items}
        for tensor, name in zip(self.tensors, self.names, strict=True):
            refusals.refuse_tensor(tensor, name, call.name)
            refusals.refuse_class(tensor, name, call.name)

    def _leaf(self, leaf: Any, path: str) -> dict[str, Any]:
        if not isinstance(leaf, torch.Tensor):
            return trees.value(leaf, path, self._what)
        self.tensors.append(leaf)
        self.names.append(path)
        return {"kind": "tensor", "index": len(self.tensors) - 1}

    def first(self, tensor: torch.Tensor) -> int:
        """The index of a tensor; the first one if it occurs several times."""
        return next(i for i, known in enumerate(self.tensors) if known is tensor)

    @property
    def same(self) -> tuple[tuple[int, int], ...]:
        """Pairs of indices that are one object."""
        firsts = [self.first(tensor) for tensor in self.tensors]
        return tuple((first, i) for i, first in enumerate(firsts) if first != i)


aten = torch.ops.aten
_BY_STRIDES = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
)
# How torch says that C++ code of its own asks a symbolic tensor for numbers.
_WITHOUT_NUMBERS = ("with symbolic sizes/strides", "to contain only concrete integers")


def captured(
    call: ExportedCall, wanted: Mapping[int, Mapping[int, OpenDim]], settings: Settings
) -> Artifact:
    """Capture a call and describe it.

    Args:
        call: The call.
        wanted: The open dimensions of its tensors, by their ``id``.
        settings: Those of the capture.

    Raises:
        UnsupportedError: For what an artifact can't do.
        NarrowedError: If dims that are left to the capture are narrower.
        PartError: If it is right for a part of the sizes only.
        Exception: Whatever the function raises, unchanged.
    """
    load_rules()
    arguments = Arguments(call)
    signature, leaves = read_signature(call.name, call.args, call.kwargs)
    sizes = opened(signature, [wanted.get(id(leaf), {}) for leaf in leaves], call.name)
    answering: Any = contextlib.nullcontext()
    if sizes.sizes is not None:
        environment, conditions = sizes.sizes.environment, sizes.sizes.conditions
        answering = environment.answering(sizes.sizes.read(leaves), conditions.answers)
        signature = sizes.sizes.signature
    with answering:
        try:
            forward, lifted = compile_forward(
                call.function,
                signature,
                leaves,
                (call.args, call.kwargs),
                settings,
                Opening(signature, leaves, sizes.sizes, None),
            )
        except FirstStepError as error:
            raise UnsupportedError(
                f"{call.name} {error}.",
                remedy="call it once, then export it; if it steps an optimizer, the gradients.",
            ) from None
        except SizeError as error:
            raise UnsupportedError(
                f"{call.name} can't be exported with open sizes{failing_at(error)}: {error.what}",
                remedy="leave dynamic_shapes out.",
            ) from error
        except RuntimeError as error:
            if type(error).__module__.startswith("torch._dynamo"):
                raise UnsupportedError(
                    f"{call.name} can't be exported: it calls torch.cond, or another function that "
                    f"traces what it is given{failing_at(error)}, and that fails in a derivative "
                    f"({str(error).splitlines()[0]}).",
                    remedy="torch.where.",
                ) from error
            if sizes.sizes is None or not any(text in str(error) for text in _WITHOUT_NUMBERS):
                raise
            raise UnsupportedError(
                f"{call.name} can't be exported with open sizes: it calls a part of torch that "
                f"takes sizes as numbers{failing_at(error)} ({str(error).splitlines()[0]}).",
                remedy="differentiate in reverse mode rather than forward (jacrev(grad(f)) for "
                "hessian(f)); or leave dynamic_shapes out.",
            ) from error
        return _described(call, forward, lifted, (arguments, leaves), sizes)


def _described(
    call: ExportedCall,
    forward: Forward,
    lifted: Sequence[torch.Tensor],
    given: tuple[Arguments, Sequence[Any]],
    sizes: OpenSizes,
) -> Artifact:
    """Refuse what can't be exported; make the graph and the signature of the rest."""
    name, slots = call.name, forward.capture.inputs
    arguments, leaves = given
    own = [leaves[slot.argument] for slot in slots if slot.argument is not None]
    places = [("argument", arguments.first(tensor)) for tensor in own]
    bakes = [call.bakes or is_constant(call.owner, tensor) for tensor in lifted]
    numbers = itertools.accumulate((not each for each in bakes), initial=0)
    places += [("parameter", number) for _, number in zip(lifted, numbers, strict=False)]
    parameters = tensor_names(call.owner, lifted)
    names = (*(arguments.names[arguments.first(tensor)] for tensor in own), *parameters)
    _refuse(forward, names, lifted, name)
    form, module = _graph(forward, sizes, name)
    baked = {len(own) + i: tensor for i, tensor in enumerate(lifted) if bakes[i]}
    program = make_program(
        inductor.prepared(module), form, forward.capture, sizes.sizes, baked, _returned(forward)
    )
    refusals.refuse_nothing(program.module, name)
    plan = ResultPlan(forward, places, program.baked, sizes.dims, name)
    results = plan.tree()
    by_index = {
        index: slot.spec for (_, index), slot in zip(places[: len(own)], slots, strict=False)
    }
    specs = [by_index[arguments.first(tensor)] for tensor in arguments.tensors]
    signature = ArtifactSignature(
        name=name,
        funcaot=importlib.metadata.version("funcaot"),
        torch=torch.__version__,
        hardware=hardware.present(),
        dims={dim.name: (dim.low, dim.high) for dim in sizes.all_dims},
        arguments=arguments.tree,
        tensors=tuple(
            _tensor(name, spec, sizes) for name, spec in zip(arguments.names, specs, strict=True)
        ),
        same=arguments.same,
        exact=forward.capture.events.reads_layout or _reads_memory(form.graph.module),
        parameters=tuple(
            _tensor(name, slot.spec, sizes)
            for name, slot, constant in zip(parameters, slots[len(own) :], bakes, strict=True)
            if not constant
        ),
        tied={}
        if call.bakes
        else further_names(call.owner, dict(zip(map(id, lifted), parameters, strict=True))),
        inputs=tuple(places[index] for index in program.inputs),
        made=tuple(plan.made),
        results=results,
        derived={dim.name: dim.expression for dim in sizes.derived.values()},
        names=names_of(call.owner),
    )
    tensors = [*own, *lifted]
    examples = tuple(_as_described(tensors[index]) for index in program.inputs)
    shown = [slots[index].spec for index in program.inputs]
    return Artifact(program, examples, _dynamic_shapes(shown, sizes), signature)


def _graph(forward: Forward, sizes: OpenSizes, name: str) -> tuple[Form, fx.GraphModule]:
    """The form that is exported, and its graph for the compiler; refused if an artifact can't."""
    lines = lines_of(forward.capture.tape.graph)
    check_conditions(sizes, name, lines)  # Otherwise what follows may fail with words of torch.
    form = forward.segment.form(keeping=False)
    refusals.refuse_nodes(form.graph.module, name)
    with shapes.without_guesses():
        module = decomposed(form.graph.module, inductor.COMPILER)
    refusals.refuse_nodes(module, name)
    refusals.refuse_ops(module, name)
    refusals.refuse_places(forward.capture, name)
    check_conditions(sizes, name, lines)
    return form, module


def _refuse(
    forward: Forward, names: Sequence[str], lifted: Sequence[torch.Tensor], name: str
) -> None:
    refusals.refuse_effects(forward, names, name)
    first = len(names) - len(lifted)
    for tensor, path in zip(lifted, names[first:], strict=True):
        refusals.refuse_tensor(tensor, path, name)
        refusals.refuse_class(tensor, path, name)
    reached = [] if forward.reader is None else forward.reader.reached_otherwise
    arguments = {slot.argument: i for i, slot in enumerate(forward.capture.inputs)}
    for position in reached:
        if position in arguments:
            raise UnsupportedError(
                f"{name} is given {names[arguments[position]]} and also reaches this tensor "
                "without its arguments, so a call with another tensor would mean another thing.",
                remedy="pass a clone as the example, or close over a clone.",
            )


def _reads_memory(module: fx.GraphModule) -> bool:
    """Whether what a graph computes depends on how its inputs lie in memory."""
    return any(graphs.op_of(node) in _BY_STRIDES for node in module.graph.nodes)


def _returned(forward: Forward) -> list[int]:
    """Slots that the function returns as they are, or views of them."""
    found: list[int] = []
    for output in forward.effects.outputs:
        origin = output.origin
        while origin is not None and origin.parent is not None:
            origin = origin.parent
        start = output if origin is None else origin
        if start.source is not None:
            found.append(start.source)
        elif start.result is not None:
            place = forward.segment.places[start.result]
            found += [] if place.operand is None else [place.operand]
    return found


def _order(spec: TensorSpec, sizes: OpenSizes) -> tuple[int, ...]:
    """The dimensions of a dense tensor from the outermost in memory to the innermost."""
    strides = [int(_at_present(step, sizes)) for step in spec.stride]
    lengths = [int(_at_present(size, sizes)) for size in spec.shape]
    # A dimension of size 1 may have any stride: it stays where it is among the others.
    if any(
        step != wanted and size > 1
        for step, size, wanted in zip(strides, lengths, _contiguous(lengths), strict=True)
    ):
        return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    return tuple(range(len(strides)))


def _contiguous(shape: Sequence[int]) -> list[int]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


def _at_present(size: Any, sizes: OpenSizes) -> Any:
    return size if sizes.sizes is None else sizes.sizes.environment.at_present(size)


def _tensor(name: str, spec: TensorSpec, sizes: OpenSizes) -> TensorSignature:
    dims = [(size, sizes.dim_of(size)) for size in spec.shape]
    shape = tuple(int(size) if dim is None else dim.name for size, dim in dims)
    dtype = str(spec.dtype).removeprefix("torch.")
    return TensorSignature(name, dtype, shape, str(spec.device), _order(spec, sizes))


def _as_described(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without history."""
    return tensor.detach()


def _dynamic_shapes(specs: Sequence[TensorSpec], sizes: OpenSizes) -> Any:
    """The open dimensions of the graph's inputs as torch names them."""
    # Torch looks for the bound of a root of others.
    largest = UNBOUNDED if not sizes.derived else _LARGEST
    made = {
        symbol: torch.export.Dim(dim.name, min=dim.low)
        if min(dim.high, largest) >= UNBOUNDED
        else torch.export.Dim(dim.name, min=dim.low, max=min(dim.high, largest))
        for symbol, dim in sizes.dims.items()
    }
    by_name = {dim.name: made[symbol] for symbol, dim in sizes.dims.items()}
    made |= {found: dim.of(by_name[dim.root]) for found, dim in sizes.derived.items()}
    return tuple(
        {dim: made[size] for dim, size in enumerate(spec.shape) if size in made} or None
        for spec in specs
    )
