"""What is around code that a tape records: `Tape` enters it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from funcaot._torch.autograd import nodes
from funcaot._torch.autograd.checkpoint import observing_checkpoints
from funcaot._torch.autograd.open_batches import with_open_transforms
from funcaot._torch.distributed.again import recording_distributed_tensors
from funcaot._torch.distributed.fake_works import numbering_works_in_turn
from funcaot._torch.dynamo.dynamo import without_dynamo
from funcaot._torch.levels import lazy_bits, linearizing
from funcaot._torch.levels.entering import showing_what_enters
from funcaot._torch.levels.flex_attention import differentiating_flex_attention
from funcaot._torch.tensors.printing import printable
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.texts import told_as_numbers
from funcaot._torch.tracing import control_flow, tracing
from funcaot._torch.tracing.fake_errors import without_reports
from funcaot._torch.tracing.torchscript import running_scripts_in_python

__all__ = ["outside_of_transforms", "watching", "with_open_sizes"]


@contextlib.contextmanager
def outside_of_transforms() -> Iterator[None]:
    """Leave every transform and mode of the caller: the tape belongs to no level."""
    with (
        without_dynamo(),
        without_reports(),
        tracing.temporarily_clear_interpreter_stack(),
        tracing.disable_current_modes(),
        lazy_bits.with_lazy_bits(),
        tracing.set_forward_ad_enabled(True),
        printable(),
        nodes.without_hooks_around(),
    ):
        yield


@contextlib.contextmanager
def watching(checkpointed: Any) -> Iterator[None]:
    """See what enters and which regions are checkpointed; run in Python what would hide its ops."""
    with (
        showing_what_enters(),
        linearizing.recording_linear_functions(),
        differentiating_flex_attention(),
        observing_checkpoints(checkpointed),
        running_scripts_in_python(),
        control_flow.taking_containers(),
        recording_distributed_tensors(),
        numbering_works_in_turn(),
    ):
        yield


@contextlib.contextmanager
def with_open_sizes() -> Iterator[None]:
    """What a trace needs that leaves sizes open."""
    with shapes.composite_ops_in_python(), told_as_numbers(), with_open_transforms():
        yield
