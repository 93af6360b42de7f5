"""What a capture does with which function of torch, as one table; ``lifting`` asks it.

To treat another function, write a handler in a file of this folder and add its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from funcaot._torch.tensors.recurrent import FLATTEN, PACK_PADDED, PAD_PACKED, RECURRENT
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.handlers import (
    constants,
    data_dependent_ops,
    idle_dropout,
    masks,
    open_sizes,
    python_values,
    reading,
    recurrent,
    selecting,
    similarity,
    sizes_in_tensors,
    splitting,
    writing,
)
from funcaot.aot.capture.handlers.autograd import detaching, differentiating, hooks, inside
from funcaot.aot.capture.handlers.call import Call, Handler, InProgress
from funcaot.aot.capture.handlers.jagged import attention, padding
from funcaot.aot.capture.handlers.memory import outs, placing, reshaping, storages
from funcaot.aot.tape.memory import writes
from funcaot.aot.tape.memory.storages import READING, RESIZING

__all__ = ["HANDLERS", "Row", "handled"]

Which: TypeAlias = Callable[[Call], bool]


class Row(NamedTuple):
    """Calls, and what is done with them."""

    which: Which
    handler: Handler


def of(*functions: Any) -> Which:
    """Calls of these functions."""
    known = frozenset(functions)
    return lambda call: call.func in known


def named(*names: str) -> Which:
    """Calls of functions, or methods, of these names."""
    known = frozenset(names)
    return lambda call: call.name in known


def has_out(call: Call) -> bool:
    """Calls that say where the result goes."""
    return call.kwargs.get("out") is not None


def with_arguments(function: Callable[..., Any]) -> Handler:
    """A handler that needs what the function is given and nothing else."""
    return lambda call, _: function(*call.args, **call.kwargs)


_TENSOR = torch.Tensor
_REQUIRES_GRAD: Any = _TENSOR.requires_grad

# A call goes through the rows in their order, until one has its result; else it runs as it is.
HANDLERS: tuple[Row, ...] = (
    Row(has_out, outs.prepare),
    Row(named(*sizes_in_tensors.SIZED), sizes_in_tensors.with_numbers),
    Row(of(*sizes_in_tensors.INDEXING), sizes_in_tensors.with_numbers_in_slices),
    Row(of(*sizes_in_tensors.INDEXING), selecting.by_open_sizes),
    # What is computed in another way than torch would.
    Row(of(*RECURRENT), recurrent.run),
    Row(of(FLATTEN), recurrent.leave_apart),
    Row(of(PACK_PADDED), recurrent.pack_padded),
    Row(of(PAD_PACKED), recurrent.pad_packed),
    Row(of(attention.ATTENTION), attention.run),
    Row(of(padding.BEGINS_EACH_ROW), padding.leave_to_eager),
    Row(of(*idle_dropout.TRAINING), idle_dropout.give_back),
    Row(of(*writing.NORMALIZING), writing.normalize),
    Row(of(torch.nn.functional.linear), open_sizes.linear),
    Row(of(torch.einsum), open_sizes.einsum),
    Row(of(*open_sizes.MAKING), open_sizes.by_formula),
    Row(of(*open_sizes.FREQUENCIES), open_sizes.frequencies),
    Row(named("fill_diagonal_"), open_sizes.fill_diagonal),
    Row(of(torch.cosine_similarity), similarity.cosine_similarity),
    Row(of(torch.nn.functional.one_hot), with_arguments(masks.one_hot)),
    Row(of(_TENSOR.tolist), python_values.as_lists),
    Row(of(_TENSOR.item, _TENSOR.__int__, _TENSOR.__float__), python_values.number),
    Row(of(_TENSOR.__format__), python_values.formatted),
    Row(of(_TENSOR.__repr__), python_values.as_text),
    Row(of(_TENSOR.__deepcopy__), with_arguments(python_values.copied)),
    Row(of(torch.tensor, torch.as_tensor, torch.asarray), with_arguments(python_values.assembled)),
    Row(of(_TENSOR.new_tensor), with_arguments(python_values.assembled_like)),
    Row(named("polygamma_"), writing.write_polygamma),
    Row(of(torch.masked_select, _TENSOR.masked_select), masks.select_by_indices),
    Row(of(_TENSOR.__getitem__, _TENSOR.__setitem__), masks.with_indices),
    # What can't be seen afterwards is noted, or refused.
    Row(of(*inside.OF_AUTOGRAD), inside.refuse),
    Row(of(_TENSOR.register_hook), hooks.note),
    Row(of(torch.autograd.grad, torch.autograd.backward), differentiating.with_own_numbers),
    Row(of(torch.autograd.grad), differentiating.note),
    Row(named(*writes.RESHAPING), reshaping.reshape),
    Row(named("detach_", "requires_grad_"), detaching.start_or_stop_requiring_grad),
    Row(of(_REQUIRES_GRAD.__set__), detaching.set_requiring_grad),
    Row(named(*detaching.COMPRESSING), detaching.compress),
    Row(named("detach"), detaching.detach),
    Row(of(tracing.GET_DATA), detaching.read_data),
    Row(of(tracing.SET_DATA), detaching.set_data),
    Row(named("storage_offset", "as_strided"), placing.name_a_place),
    Row(named(*READING), storages.refuse_reading),
    Row(of(_TENSOR.data_ptr), reading.compare_addresses),
    Row(named("stride", "is_contiguous"), reading.note_layout),
    Row(named("is_set_to"), reading.refuse_places),
    Row(named(*reading.POINTERS), reading.refuse_pointer),
    Row(of(reading.BASE), reading.read_base),
    Row(of(reading.VERSION), reading.read_version),
    *(Row(of(read), reading.refuse_hooks(name)) for name, read in reading.HOOKS.items()),
    Row(of(reading.OUTPUT_NUMBER), reading.tell("output_nr")),
    Row(of(reading.RETAINS_GRAD), reading.tell("retains_grad")),
    *(Row(named(name), reading.tell(name)) for name in reading.TOLD),
    Row(lambda call: call.name.startswith(RESIZING), storages.refuse_resizing),
    Row(named(*splitting.UNSAFE), splitting.split),
    # Whatever else writes.
    Row(writing.is_of_lists, writing.write_to_lists),
    Row(writing.on_lists, writing.note_saved),
    Row(lambda call: writes.is_write(call.name), writing.write),
    # What reads values.
    Row(of(torch.tensor_split, _TENSOR.tensor_split), data_dependent_ops.split_by_numbers),
    Row(of(*data_dependent_ops.OPAQUE), data_dependent_ops.run_opaquely),
    Row(has_out, outs.write),
)


def handled(call: Call, capture: InProgress) -> Any:
    """Run a call of a function of torch in a capture, by the table."""
    for which, handler in HANDLERS:
        if not which(call):
            continue
        found = handler(call, capture)
        if isinstance(found, Call):
            call = found
        elif found is not NotImplemented:
            return found
    return constants.run(call, capture)
