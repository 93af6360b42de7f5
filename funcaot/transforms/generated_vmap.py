"""The generated vmap rule: forward, setup_context, backward and jvp, each run per example."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import is_level_failure, pytree
from funcaot._torch.tracing.tracing_errors import READS_BATCHED_VALUES
from funcaot.classes.class_cache import cache_of
from funcaot.classes.context import RecordingContext
from funcaot.classes.traits import (
    asks_for,
    defined_at,
    display_name,
    has_backward,
    has_jvp,
    origin_of,
)
from funcaot.errors import FuncaotError, RuleError, UnsupportedError
from funcaot.rules.batching import batch_size_of, run_batched, with_dimension
from funcaot.rules.generated.complete import completed
from funcaot.rules.looping import run_batched_or_looped, run_looped
from funcaot.rules.metadata import attach
from funcaot.rules.returns import checked_gradients, checked_tangents, describe, shapes_of
from funcaot.transforms.forms.dirty import may_mark_dirty
from funcaot.transforms.reverse import run_reverse

__all__ = ["BatchDimensions", "dimensions_of", "vmapped"]

_RECORD = "_funcaot_vmapped"


@dataclass(frozen=True)
class BatchDimensions:
    """The last output of a vmapped Function: where the batch dimension of the others is.

    It's no tensor and no container, so every level below passes it through.
    """

    dims: tuple[Any, ...]
    single: bool


@dataclass(frozen=True)
class _Record:
    """What setup_context did for one example, with tensors replaced by places in the saved list."""

    batch_size: int
    input_shapes: tuple[Any, ...]
    output_shapes: tuple[Any, ...]
    output_dims: tuple[Any, ...]
    saved_dims: tuple[Any, ...]
    forward_dims: tuple[Any, ...] | None
    attributes: dict[str, Any]
    attribute_specs: dict[str, tuple[Any, tuple[Any, ...]]]
    attribute_dims: tuple[Any, ...]
    alone: bool

    def context(self, ctx: Any, saved: tuple[Any, ...], tensors: tuple[Any, ...]) -> Any:
        """A ctx for one example, with its saved tensors and its attributes."""
        attributes = dict(self.attributes)
        rest = iter(tensors)
        for name, (spec, leaves) in self.attribute_specs.items():
            filled = [next(rest) if leaf is _TENSOR else leaf for leaf in leaves]
            attributes[name] = pytree.tree_unflatten(filled, spec)
        return RecordingContext(ctx.needs_input_grad, saved_tensors=saved, attributes=attributes)


class _Tensor:
    """Marks the place of a tensor inside an attribute of ctx."""


_TENSOR = _Tensor()


def vmapped(
    function: type, in_dims: tuple[Any, ...], randomness: str, batch_size: int | None = None
) -> type:
    """A Function on physical operands that runs ``function`` on each example.

    Args:
        function: A Function with ``setup_context``; its derivative rules may be missing.
        in_dims: The batch dimension of each operand, None where it has none.
        randomness: How random ops behave across the batch.
        batch_size: Where no operand has a batch dimension to read it off.
    """
    cache = cache_of(function)
    key = ("vmapped", _frozen(in_dims), randomness, batch_size)
    if key not in cache:
        made = _Vmapped(completed(function), in_dims, randomness, batch_size)
        cache[key] = made.as_class()
    return cache[key]


def dimensions_of(
    output: Any, operands: tuple[Any, ...], in_dims: tuple[Any, ...]
) -> tuple[list[Any], BatchDimensions]:
    """Separate the output of a vmapped Function from its dimensions.

    One operand alone, returned as it is, comes without: autograd lets a Function change a view in
    place only if it returns nothing else.
    """
    if isinstance(output, tuple):
        return list(output[:-1]), output[-1]
    place = next(i for i, operand in enumerate(operands) if operand is output)
    return [output], BatchDimensions((in_dims[place],), single=True)


def _frozen(dims: Any) -> Any:
    if isinstance(dims, (list, tuple)):
        return tuple(map(_frozen, dims))
    if isinstance(dims, dict):
        return tuple((key, _frozen(value)) for key, value in dims.items())
    return dims


def _explain_values(function: type, error: RuntimeError) -> None:
    """Say what to write instead where a rule read the value of a batched tensor.

    Raises:
        RuleError: It did.
    """
    text = str(error)
    if not isinstance(error, RuleError) and any(words in text for words in READS_BATCHED_VALUES):
        raise RuleError(
            f"{display_name(function)} was called under vmap, and its forward or another rule "
            "reads the value of a tensor (.item(), float() or a branch), which differs from "
            "example to example",
            expected="operations on tensors; torch.where for a branch",
            got=text.splitlines()[0],
            remedy="use torch.where, or set `vmap_by_loop = True` to run one example after "
            "another, or define `vmap`.",
            where=defined_at(function),
        ) from error


@contextlib.contextmanager
def _explaining_leaves(function: type) -> Iterator[None]:
    """Say what to write instead where forward begins a graph of its own, of batched tensors.

    Raises:
        UnsupportedError: It does.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, FuncaotError) or not is_level_failure(error):
            raise
        raise UnsupportedError(
            f"{display_name(function)} was called under vmap, and its forward or setup_context "
            "runs autograd itself",
            expected="operations that vmap batches",
            got=str(error).splitlines()[0],
            remedy="keep `x` by ctx.save_for_backward(x), and in backward compute with "
            "`x.detach().requires_grad_()` under torch.enable_grad(); or define `vmap`.",
            where=defined_at(function),
        ) from error


class _Vmapped:
    """The four staticmethods of a vmapped Function."""

    def __init__(
        self, function: type, in_dims: tuple[Any, ...], randomness: str, batch_size: int | None
    ) -> None:
        self.function, self.in_dims, self.randomness = function, in_dims, randomness
        self.batch_size = batch_size
        # A class that asks for the generated rule means the batched one, and hears if it can't be.
        self.batches_outputs = getattr(origin_of(function), "batches_outputs", False)
        self.compiled = hasattr(origin_of(function), "funcaot_program")
        self.may_loop = not asks_for(origin_of(function), "generate_vmap_rule")

    def as_class(self) -> type:
        function = self.function
        namespace: dict[str, Any] = {
            "forward": staticmethod(self.forward),
            "setup_context": staticmethod(self.setup_context),
            "generate_vmap_rule": True,
            "generate_jvp_rule": False,  # both are already generated per example, if allowed
            "generate_backward_rule": False,
            "funcaot_origin": origin_of(function),
            "funcaot_forward_of": function,
            # Without a backward, the error has to say whose is missing.
            "funcaot_checks_rules": not has_backward(function),
            "__module__": function.__module__,
        }
        if has_backward(function):
            namespace["backward"] = staticmethod(self.backward)
        if has_jvp(function):
            namespace["jvp"] = staticmethod(self.jvp)
        return new_function_class(function.__name__, torch.autograd.Function, namespace)

    def _size(self, operands: tuple[Any, ...]) -> int:
        if self.batch_size is not None:
            return self.batch_size
        return batch_size_of(operands, self.in_dims)

    def _run(self, body: Any, operands: Any, dims: Any, batch_size: int) -> tuple[Any, Any]:
        options = {"batch_size": batch_size, "randomness": self.randomness}
        if getattr(origin_of(self.function), "vmap_by_loop", False):
            return run_looped(body, operands, dims, owner=display_name(self.function), **options)
        if self.may_loop:
            owner = display_name(self.function)
            return run_batched_or_looped(body, operands, dims, owner=owner, **options)
        try:
            return run_batched(body, operands, dims, **options)
        except RuntimeError as error:
            _explain_values(origin_of(self.function), error)
            raise

    def forward(self, *operands: Any) -> Any:
        size = self._size(operands)
        with _explaining_leaves(origin_of(self.function)):
            output, dims = self._run(self.function.forward, operands, self.in_dims, size)
        if isinstance(output, tuple):
            if self.batches_outputs:
                output, dims = _all_batched(output, dims, size)
            return (*output, BatchDimensions(dims, single=False))
        returned = any(output is operand for operand in operands)
        if returned and may_mark_dirty(self.function):
            return output  # where its batch is, is known; see dimensions_of
        return output, BatchDimensions((dims,), single=True)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values, dimensions = dimensions_of(output, inputs, self.in_dims)
        size = self._size(inputs)
        found: dict[str, Any] = {}

        def example(inputs: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
            # A dirty input is the output afterwards, and its identity is what the user marks.
            values = tuple(
                _same(value, values_at, inputs_at, inputs)
                for value, values_at in zip(values, range(len(values)), strict=True)
            )
            recorder = RecordingContext(ctx.needs_input_grad, owner=display_name(self.function))
            output = values[0] if dimensions.single else values
            self.function.setup_context(recorder, inputs, output)
            specs, tensors = _tensors_in(recorder.recorded_attributes)
            found.update(
                recorder=recorder,
                specs=specs,
                dirty=[self._dirty_input(t, inputs) for t in recorder.dirty_tensors],
                constant=[_position(t, values) for t in recorder.non_differentiable],
                input_shapes=shapes_of(inputs),
                output_shapes=shapes_of(values),
            )
            saved, saved_forward = recorder.to_save, recorder.saved_for_forward
            return tuple(saved or ()), tuple(saved_forward or ()), tensors

        inputs_at = {id(value): i for i, value in enumerate(inputs)}
        inputs_at = {j: inputs_at[id(v)] for j, v in enumerate(values) if id(v) in inputs_at}
        dims = (self.in_dims, dimensions.dims)
        # Never in a loop: attributes of ctx that aren't tensors have to hold for every example.
        with _explaining_leaves(origin_of(self.function)):
            kept, kept_dims = run_batched(
                example,
                (tuple(inputs), tuple(values)),
                dims,
                batch_size=size,
                randomness=self.randomness,
            )
        self._replay(ctx, inputs, values, found, kept)
        saved_dims, forward_dims, attribute_dims = kept_dims if any(kept) else ((), (), ())
        recorder = found["recorder"]
        record = _Record(
            batch_size=size,
            input_shapes=found["input_shapes"],
            output_shapes=found["output_shapes"],
            output_dims=dimensions.dims,
            saved_dims=saved_dims,
            forward_dims=None if recorder.saved_for_forward is None else forward_dims,
            attributes={
                name: value
                for name, value in recorder.recorded_attributes.items()
                if name not in found["specs"]
            },
            attribute_specs=found["specs"],
            attribute_dims=attribute_dims,
            alone=not isinstance(output, tuple),
        )
        attach(ctx, _RECORD, record, display_name(self.function))

    def _dirty_input(self, tensor: torch.Tensor, inputs: tuple[Any, ...]) -> int:
        index = _position(tensor, inputs)
        if index is None:
            raise RuleError(
                f"setup_context of {display_name(self.function)} under vmap marked a tensor dirty "
                "that is no input",
                expected="inputs of forward in mark_dirty",
                got=describe(tensor),
                remedy="mark only inputs that forward changed in place and returns.",
                where=defined_at(self.function),
            )
        return index

    def _replay(
        self, ctx: Any, inputs: Any, values: list[Any], found: dict[str, Any], kept: Any
    ) -> None:
        saved, saved_forward, tensors = kept
        recorder = found["recorder"]
        ctx.save_for_backward(*saved, *tensors)
        if has_jvp(self.function):
            ctx.save_for_forward(*saved_forward, *tensors)
        if found["dirty"]:
            ctx.mark_dirty(*[inputs[i] for i in found["dirty"]])
        if found["constant"]:
            ctx.mark_non_differentiable(*[values[j] for j in found["constant"] if j is not None])
        ctx.set_materialize_grads(recorder.materialize_grads)

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        record: _Record = ctx._funcaot_vmapped
        saved, tensors = _split(ctx.saved_tensors, len(record.saved_dims))
        cotangents = cotangents[: len(record.output_dims)]  # a last output may hold dimensions
        cotangent_dims = tuple(
            None if cotangent is None else dim
            for cotangent, dim in zip(cotangents, record.output_dims, strict=True)
        )
        batched = (cotangent_dims, record.saved_dims, record.attribute_dims)
        if any(dim is not None for dim in pytree.tree_leaves(batched)):
            cotangents, cotangent_dims = _counted_once(
                cotangents, cotangent_dims, record.batch_size
            )

        def example(saved: Any, tensors: Any, cotangents: Any) -> Any:
            context = record.context(ctx, saved, tensors)
            result = run_reverse(self.function, context, cotangents)
            checked_gradients(self.function, result, record.input_shapes)
            result = result if isinstance(result, tuple) else (result,)
            return tuple(
                gradient if gradient is None or shape is None else gradient.sum_to_size(shape)
                for gradient, shape in zip(result, record.input_shapes, strict=False)
            )

        dims = (record.saved_dims, record.attribute_dims, cotangent_dims)
        gradients, gradient_dims = self._run(
            example, (saved, tensors, cotangents), dims, record.batch_size
        )
        return tuple(
            _gradient_for(gradient, dim, in_dim, record.batch_size)
            for gradient, dim, in_dim in zip(gradients, gradient_dims, self.in_dims, strict=False)
        )

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        record: _Record = ctx._funcaot_vmapped
        kept = record.saved_dims if record.forward_dims is None else record.forward_dims
        kept = () if record.forward_dims is None else kept
        saved, tensors = _split(ctx.saved_tensors, len(kept))
        tangent_dims = tuple(
            None if tangent is None else dim
            for tangent, dim in zip(tangents, self.in_dims, strict=True)
        )

        def example(saved: Any, tensors: Any, tangents: Any) -> Any:
            result = self.function.jvp(record.context(ctx, saved, tensors), *tangents)
            checked_tangents(self.function, result, record.output_shapes)
            return result if isinstance(result, tuple) else (result,)

        dims = (kept, record.attribute_dims, tangent_dims)
        result, result_dims = self._run(
            example, (saved, tensors, tangents), dims, record.batch_size
        )
        moved = [
            self._tangent_for(index, tangent, dim, record)
            for index, (tangent, dim) in enumerate(zip(result, result_dims, strict=True))
        ]
        return moved[0] if record.alone else (*moved, None)

    def _tangent_for(self, index: int, tangent: Any, dim: int | None, record: _Record) -> Any:
        wanted = record.output_dims[index]
        if tangent is None or dim == wanted:
            return tangent
        if wanted is None and self.compiled and record.batch_size:
            # What all operands lead to is pushed at once; this output's part is equal for all.
            return tangent.select(dim, 0)
        if wanted is None:
            raise RuleError(
                f"jvp of {display_name(self.function)} under vmap returned a tangent per example "
                f"for output {index}, which doesn't depend on the example",
                expected="a tangent without batch dimension, like the output",
                got=f"a tangent with batch dimension {dim}",
                remedy="let the output depend on the batched input, for instance by expanding it.",
                where=defined_at(self.function),
            )
        return with_dimension(tangent, dim, wanted, record.batch_size)


def _all_batched(output: Any, dims: Any, size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Copy what doesn't depend on the example for each: its tangent may depend on it."""
    pairs = [
        (with_dimension(value, None, 0, size).clone(), 0)
        if isinstance(value, torch.Tensor) and dim is None
        else (value, dim)
        for value, dim in zip(output, dims, strict=True)
    ]
    return tuple(value for value, _ in pairs), tuple(dim for _, dim in pairs)


def _same(value: Any, at: int, inputs_at: dict[int, int], inputs: tuple[Any, ...]) -> Any:
    return inputs[inputs_at[at]] if at in inputs_at else value


def _position(tensor: Any, among: Any) -> int | None:
    return next((i for i, other in enumerate(among) if other is tensor), None)


def _split(tensors: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(tensors[:count]), tuple(tensors[count:])


def _tensors_in(
    attributes: dict[str, Any],
) -> tuple[dict[str, tuple[Any, tuple[Any, ...]]], tuple[torch.Tensor, ...]]:
    """Find the tensors kept in attributes of ctx: they belong to one example and must be saved."""
    specs: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    tensors: list[torch.Tensor] = []
    for name, value in attributes.items():
        leaves, spec = pytree.tree_flatten(value)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            tensors.extend(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
            marked = tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
            specs[name] = (spec, marked)
    return specs, tuple(tensors)


def _counted_once(
    cotangents: tuple[Any, ...], dims: tuple[Any, ...], batch_size: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Give the cotangent of an output that the whole batch shares to the first example alone.

    Each example would pull it back, and the sum over the batch would count it ``batch_size`` times.
    """

    def alone(cotangent: torch.Tensor) -> torch.Tensor:
        rest = cotangent.new_zeros((batch_size - 1, *cotangent.shape))
        return torch.cat([cotangent.unsqueeze(0), rest])

    shared = [c is not None and dim is None for c, dim in zip(cotangents, dims, strict=True)]
    if batch_size == 0 or not any(shared):
        return cotangents, dims
    return (
        tuple(alone(c) if once else c for c, once in zip(cotangents, shared, strict=True)),
        tuple(0 if once else dim for dim, once in zip(dims, shared, strict=True)),
    )


def _gradient_for(gradient: Any, dim: int | None, in_dim: Any, batch_size: int) -> Any:
    if gradient is None:
        return None
    if in_dim is None:  # one operand for the whole batch: its gradient is the sum
        return gradient if dim is None else gradient.sum(dim)
    return with_dimension(gradient, dim, in_dim, batch_size)
