"""``forward(ctx, ...)`` taken apart into a forward and a ``setup_context``.

forward runs once on a recording ctx. Every tensor that it kept is an input, an output, or an
intermediate, told apart by identity; intermediates become extra outputs. What was kept is then a
plan of references, which travels as one more output, so ``setup_context`` can run at any level.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import pytree
from funcaot.classes.class_cache import cache_of
from funcaot.classes.containers import leaving, note_kept
from funcaot.classes.context import RecordingContext
from funcaot.classes.traits import (
    display_name,
    has_backward,
    has_jvp,
    may_generate,
    origin_of,
    reverse_rule,
)
from funcaot.errors import UnsupportedError
from funcaot.rules.kept_graphs import Recorded, refuse_graphs
from funcaot.rules.kept_objects import note_kept_objects
from funcaot.rules.metadata import TensorMetadata, attach
from funcaot.rules.operands.closures import Hollow, Sealed
from funcaot.rules.operands.copied_writes import GradientOfCopy, refuse_writes
from funcaot.rules.operands.entered import is_of_a_call
from funcaot.rules.operands.flat_call import apart_from
from funcaot.rules.operands.kept import without_tensors
from funcaot.rules.returns import checked_gradients, shapes_of
from funcaot.rules.seen import Seen

__all__ = ["Intermediates", "Reference", "SplitPlan", "run_forward", "split"]

_PLAN = "_funcaot_plan"
_FUNCTIONS = (types.FunctionType, types.MethodType, types.ModuleType)
Intermediates = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Reference:
    """A tensor that forward kept: which ``input``, ``output`` or ``intermediate`` it is.

    Inputs are counted with those inside of containers. A ``parameter`` was there before the call.
    An intermediate that is a ``leaf`` of a graph to come (``x.detach().requires_grad_()``) is one
    in the rules, too; a ``named`` one is from before the call, and its gradient would be lost.
    """

    kind: str
    index: int
    leaf: bool = False
    named: bool = False


@dataclass(frozen=True)
class Parameters:
    """Parameters that forward kept and wasn't given; no container, so no level looks into it."""

    all: tuple[torch.nn.Parameter, ...]


@dataclass(frozen=True)
class SplitPlan:
    """What forward did to its ctx, with references for tensors.

    No container and no tensor, so every level passes it through.

    Attributes:
        specs: The structure of each attribute.
        leaves: The leaves of each; in the place of an object that holds tensors, one with holes.
        inside: What was in the holes.
        parameters: What it kept that was there before.
    """

    saved: tuple[Any, ...]
    saved_forward: tuple[Any, ...] | None
    specs: dict[str, Any]
    leaves: Hollow
    inside: tuple[Reference, ...]
    parameters: Parameters
    dirty: tuple[int, ...]
    constant: tuple[Reference, ...]
    materialize: bool
    single: bool
    outputs: int
    given: tuple[str, ...]

    @property
    def told(self) -> tuple[Any, ...]:
        """What it says besides where tensors are."""
        kept = [*self.saved, *self.flat]
        return tuple(each for each in kept if not isinstance(each, Reference))

    @property
    def flat(self) -> list[Any]:
        """The leaves of all attributes."""
        return [leaf for leaves in self.leaves.roots for leaf in leaves]

    @property
    def objects(self) -> list[Any]:
        """The user's own objects among them, those of which rules see copies, too."""
        own = [leaf for leaf in self.flat if id(leaf) not in self.leaves.copies]
        return [*own, *[original.get() for original in self.leaves.originals.values()]]


def run_forward(
    function: type, operands: tuple[Any, ...], seen: Seen
) -> tuple[tuple[Any, ...], tuple[torch.Tensor, ...], SplitPlan]:
    """Run an old-style forward on a recording ctx.

    Args:
        function: The Function.
        operands: Its operands, as the level sees them where this runs.
        seen: What they say where the Function was called.

    Returns:
        Its outputs, the intermediates that it kept, and the plan that refers to both.
    """
    ctx = RecordingContext(seen.needs)
    with Recorded(operands, seen) as recorded:
        output, _ = seen.run(partial(function.forward, ctx), *operands)
    single = not isinstance(output, tuple)
    outputs = (output,) if single else output
    found = _Finder(function, _leaves(operands), outputs)
    flat = {name: pytree.tree_flatten(value) for name, value in ctx.recorded_attributes.items()}
    hollow, inside = found.attributes(tuple(tuple(leaves) for leaves, _ in flat.values()))
    saved = tuple(map(found.reference, ctx.to_save or ()))
    forward = ctx.saved_for_forward
    if forward is not None:
        forward = tuple(map(found.reference, forward))
    refuse_graphs(display_name(function), found.graphs)
    plan = SplitPlan(
        saved=saved,
        saved_forward=forward,
        specs={name: spec for name, (_, spec) in flat.items()},
        leaves=hollow,
        inside=inside,
        parameters=Parameters(tuple(found.parameters)),
        dirty=tuple(i for i, v in enumerate(operands) if any(v is d for d in ctx.dirty_tensors)),
        constant=tuple(map(found.reference, ctx.non_differentiable)),
        materialize=ctx.materialize_grads,
        single=single,
        outputs=len(outputs),
        given=note_kept(ctx.recorded_attributes, operands),
    )
    if found.is_traced:
        recorded.refuse(function, (*found.intermediates, *plan.flat))
    return outputs, tuple(found.intermediates), plan


def _leaves(values: tuple[Any, ...]) -> Sequence[Any]:
    """Operands and, in the place of containers, what they hold."""
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        return pytree.tree_leaves(values)
    return values


class _Finder:
    """Finds out what each tensor that forward kept is."""

    def __init__(self, function: type, operands: Sequence[Any], outputs: tuple[Any, ...]) -> None:
        self.function, self.operands, self.outputs = function, operands, outputs
        self.intermediates: list[torch.Tensor] = []
        self.parameters: list[torch.nn.Parameter] = []
        self.graphs: list[torch.Tensor] = []
        self.is_traced = any(isinstance(v, torch.Tensor) and is_of_a_call(v) for v in operands)

    def reference(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        leaf = value.requires_grad and value.is_leaf
        places = (
            ("input", self.operands),
            ("output", self.outputs),
            ("intermediate", self.intermediates),
            ("parameter", self.parameters),
        )
        for kind, values in places:
            for index, other in enumerate(values):
                if other is value:
                    return Reference(kind, index, leaf and kind == "intermediate")
        if isinstance(value, torch.nn.Parameter):
            # It was there before the call: no tensor of this call's, but perhaps one of a tape.
            if not self.is_traced:
                return value
            self.parameters.append(value)
            return Reference("parameter", len(self.parameters) - 1)
        if value.grad_fn is not None and torch.is_grad_enabled() is False:
            self.graphs.append(value)
        self.intermediates.append(value)
        named = leaf and _is_named(self.function, value)
        return Reference("intermediate", len(self.intermediates) - 1, leaf, named)

    def attributes(
        self, leaves: tuple[tuple[Any, ...], ...]
    ) -> tuple[Hollow, tuple[Reference, ...]]:
        """Leaves of attributes with references for tensors, and what is inside of objects.

        The rules see copies of these objects, with a level's own tensors.
        """
        found = tuple(tuple(map(self.reference, each)) for each in leaves)
        near = {id(tensor) for each in leaves for leaf in each for tensor in self._near(leaf)}
        try:
            hollow, inside = without_tensors(
                found, lambda tensor: self._is_ours(tensor, near), self._is_left
            )
        except Sealed as sealed:
            self._refuse("hides tensors of the call on ctx, where they can't be replaced", sealed)
        return hollow, tuple(map(self.reference, inside))

    def _is_left(self, value: Any) -> bool:
        """Whether what an object holds isn't looked at: an operand's is found where it is given.

        A module may hold tensors of the call by ``functional_call``, until that ends.
        """
        return isinstance(value, torch.nn.Module) or any(value is each for each in self.operands)

    def _near(self, leaf: Any) -> list[Any]:
        """Tensors that an object itself holds."""
        fields = getattr(leaf, "__dict__", None)
        if not isinstance(fields, dict) or isinstance(leaf, (*_FUNCTIONS, type)):
            return []
        return [] if self._is_left(leaf) else pytree.tree_leaves(list(fields.values()))

    def _is_ours(self, tensor: torch.Tensor, near: set[int]) -> bool:
        """Whether a tensor inside of an object is taken out.

        A tape's tensors tell what they are of, and real values don't. What is from before the call
        is taken where the object itself holds it. What lies deeper is left, as backward may change
        the object that holds it, which others see. One with a graph wasn't computed here.
        """
        if any(tensor is value for value in (*self.operands, *self.outputs)):
            return True
        if isinstance(tensor, torch.nn.Parameter):
            return False
        if self.is_traced:
            return id(tensor) in near or is_of_a_call(tensor)
        return tensor.grad_fn is None or torch.is_grad_enabled()

    def _refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        raise UnsupportedError(
            f"{display_name(self.function)} can't be split into forward and setup_context: its "
            f"forward {what}",
            expected="tensors on ctx as attributes, lists, tuples or dicts of tensors, or saved",
            got="a tensor whose level can't be told",
            remedy="write forward without ctx and a setup_context; or keep the tensors with "
            "ctx.save_for_backward.",
        ) from cause


def _is_named(function: type, value: torch.Tensor) -> bool:
    """Whether forward finds a tensor in its closure or its globals."""
    forward = inspect.unwrap(getattr(function.forward, "__func__", function.forward))
    if not inspect.isfunction(forward):
        return False
    found = inspect.getclosurevars(forward)
    return any(value is each for each in (*found.nonlocals.values(), *found.globals.values()))


def split(function: type, mode: str, intermediates: Intermediates) -> type:
    """The Function with ``setup_context`` that an old-style Function stands for.

    Args:
        function: The old-style Function.
        mode: ``eager``, ``strict`` or ``exact``: what a second derivative through an intermediate
            does.
        intermediates: How backward reads the intermediates in modes other than ``eager``.

    Returns:
        A class whose forward returns outputs, then intermediates, then the plan.
    """
    cache = cache_of(function)
    if ("split", mode) not in cache:
        cache["split", mode] = _Split(function, mode, intermediates).as_class()
    return cache["split", mode]


class _Split:
    """The staticmethods of a split Function."""

    def __init__(self, function: type, mode: str, intermediates: Intermediates) -> None:
        self.function, self.mode, self.intermediates = function, mode, intermediates

    def as_class(self) -> type:
        function = self.function
        namespace: dict[str, Any] = {
            "forward": staticmethod(self.forward),
            "setup_context": staticmethod(self.setup_context),
            "funcaot_origin": origin_of(function),
            "funcaot_ctx_user": staticmethod(function.forward),
            "allow_nonlinear_rule": getattr(function, "allow_nonlinear_rule", False),
            "__module__": function.__module__,
        }
        for flag in ("generate_vmap_rule", "generate_jvp_rule", "generate_backward_rule"):
            namespace[flag] = may_generate(function, flag)
        if has_backward(function):
            namespace["backward"] = staticmethod(self.backward)
        if has_jvp(function):
            namespace["jvp"] = staticmethod(self.jvp)
        return new_function_class(function.__name__, torch.autograd.Function, namespace)

    def forward(self, *operands: Any) -> tuple[Any, ...]:
        """The last operand is what the others say (see ``Seen``)."""
        *operands, seen = operands
        outputs, intermediates, plan = run_forward(self.function, tuple(operands), seen)
        if not (plan.dirty or plan.constant):
            outputs = apart_from(operands, outputs)
        return (*outputs, *intermediates, plan)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *values, plan = output
        *inputs, seen = inputs
        outputs, intermediates = values[: plan.outputs], values[plan.outputs :]
        places = {
            "input": _leaves(tuple(inputs)),
            "output": outputs,
            "intermediate": intermediates,
            "parameter": plan.parameters.all,
        }

        def find(reference: Any) -> Any:
            if not isinstance(reference, Reference):
                return reference
            return places[reference.kind][reference.index]

        kept = [find(r) for r in _references(plan)]
        sources = [] if self.mode == "eager" else [v for v in inputs if _is_tensor(v)]
        ctx.save_for_backward(*kept, *sources)
        if plan.saved_forward is not None or has_jvp(self.function):
            forward = [find(r) for r in plan.saved_forward or ()]
            ctx.save_for_forward(*forward, *[find(r) for r in _attribute_references(plan)])
        if plan.dirty:
            ctx.mark_dirty(*[inputs[i] for i in plan.dirty])
        constants = [find(r) for r in plan.constant] + intermediates
        if constants:
            ctx.mark_non_differentiable(*constants)
        ctx.set_materialize_grads(False)
        call = _SplitCall(
            plan,
            tuple(None if _is_tensor(v) else v for v in (*inputs, seen)),
            tuple(map(_is_tensor, (*inputs, seen))),
            tuple(map(TensorMetadata.of, inputs)),
            tuple(map(TensorMetadata.of, outputs)),
            shapes_of(tuple(inputs)),
        )
        attach(ctx, _PLAN, call, display_name(self.function))

    def backward(self, ctx: Any, *cotangents: Any) -> Any:
        call: _SplitCall = ctx._funcaot_plan
        plan = call.plan
        references = _references(plan)
        tensors = ctx.saved_tensors  # read once, which is all that a checkpoint around allows
        kept, sources = list(tensors[: len(references)]), tensors[len(references) :]
        if self.mode != "eager":
            kept = self._linked(call, references, kept, sources)
        saved, attributes, writes = _filled(plan, plan.saved, kept, later=True)
        note_kept_objects(plan.objects)
        needs = ctx.needs_input_grad[:-1]
        own = RecordingContext(needs, saved_tensors=saved, attributes=attributes)
        given = [
            metadata.zeros() if c is None and plan.materialize and metadata is not None else c
            for c, metadata in zip(cotangents, call.outputs, strict=False)
        ]
        boxed = getattr(self.function, "boxed_grads_call", False)
        with leaving(display_name(self.function), [attributes[name] for name in plan.given]):
            result = reverse_rule(self.function)(own, *((given,) if boxed else given))
        refuse_writes(self.function, writes)
        result = checked_gradients(self.function, result, call.shapes)
        return (*(result if isinstance(result, tuple) else (result,)), None)

    def _linked(
        self, call: _SplitCall, references: list[Reference], kept: list[Any], sources: Any
    ) -> list[Any]:
        where = [k for k, r in enumerate(references) if r.kind == "intermediate"]
        if not where:
            return kept
        rest = iter(sources)
        operands = tuple(
            next(rest) if given else constant
            for given, constant in zip(call.is_tensor, call.constants, strict=True)
        )
        indices = tuple(references[k].index for k in where)
        values = tuple(kept[k] for k in where)
        linked = self.intermediates(self.function, self.mode, indices, values, operands)
        for k, value in zip(where, linked, strict=True):
            kept[k] = value
        return kept

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        call: _SplitCall = ctx._funcaot_plan
        plan = call.plan
        saved, attributes, writes = _filled(plan, plan.saved_forward or (), list(ctx.saved_tensors))
        needs = ctx.needs_input_grad[:-1]
        own = RecordingContext(needs, saved_tensors=saved, attributes=attributes)
        given = map(call.tangent, call.inputs, tangents)
        result = self.function.jvp(own, *given)
        refuse_writes(self.function, writes)
        result = result if isinstance(result, tuple) else (result,)
        extra = len(ctx._funcaot_output_shapes) if hasattr(ctx, "_funcaot_output_shapes") else 0
        return (*result, *[None] * (extra - len(result)))


@dataclass(frozen=True)
class _SplitCall:
    """The plan of one call, and what backward needs to know of its operands and outputs."""

    plan: SplitPlan
    constants: tuple[Any, ...]
    is_tensor: tuple[bool, ...]
    inputs: tuple[TensorMetadata | None, ...]
    outputs: tuple[TensorMetadata | None, ...]
    shapes: tuple[Any, ...]

    def tangent(self, metadata: TensorMetadata | None, tangent: Any) -> Any:
        """What the user's rule is given for an operand."""
        missing = tangent is None and metadata is not None and self.plan.materialize
        return metadata.zeros() if missing and metadata.is_differentiable else tangent  # type: ignore[union-attr]

    @property
    def unchecked(self) -> range:
        """Which saved tensors were attributes, whose versions eager doesn't check."""
        saved = sum(isinstance(value, Reference) for value in self.plan.saved)
        return range(saved, saved + len(_attribute_references(self.plan)))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _attribute_references(plan: SplitPlan) -> list[Reference]:
    return [part for part in (*plan.flat, *plan.inside) if isinstance(part, Reference)]


def _references(plan: SplitPlan) -> list[Reference]:
    """Every tensor that backward needs: the saved ones, then those in attributes."""
    saved = [value for value in plan.saved if isinstance(value, Reference)]
    return saved + _attribute_references(plan)


def _filled(
    plan: SplitPlan, saved: tuple[Any, ...], kept: list[Any], *, later: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """Put kept tensors in the place of their references; and what sees writes to objects.

    Objects are as they were when forward ran, or as they are ``later``.
    """
    rest = iter(kept)
    writes: list[Any] = []
    leaves: dict[int, torch.Tensor] = {}

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Reference):
            return leaf
        value = next(rest)
        if not leaf.leaf:
            return value
        if leaf.index not in leaves:
            leaves[leaf.index] = value.detach().requires_grad_()
            if leaf.named:
                writes.append(GradientOfCopy(leaves[leaf.index]))
        return leaves[leaf.index]

    tensors = tuple(map(fill, saved))
    places = [[fill(leaf) for leaf in root] for root in plan.leaves.roots]
    made = plan.leaves.filled(map(fill, plan.inside), writes, later=later)
    attributes = {}
    for (name, spec), own, root in zip(plan.specs.items(), places, made, strict=True):
        values = [
            value if isinstance(leaf, Reference) else leaf
            for value, leaf in zip(own, root, strict=True)
        ]
        attributes[name] = pytree.tree_unflatten(values, spec)
    return tensors, attributes, writes
