"""torch's ``OpInfo`` and ``SampleInput`` records as ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from funcaot.testing.records import FunctionInfo, Sample


def full_name(operator: Any) -> str:
    """The operator's name with its variant, for example ``std_mean.unbiased``."""
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else operator.name


def as_sample(given: Any, index: int) -> Sample:
    """A torch ``SampleInput`` as a ``Sample``."""
    return Sample(given.input, tuple(given.args), dict(given.kwargs), name=f"sample{index}")


def samples_of(operator: Any, device: str, dtype: torch.dtype, seed: int = 0) -> Iterator[Sample]:
    """The operator's samples, the same ones every time.

    They come from the record's own function. Its ``sample_inputs`` looks through the whole stack
    for a test of unittest, which takes longer than the samples.
    """
    grad = dtype.is_floating_point or dtype.is_complex
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        given = list(operator.sample_inputs_func(operator, device, dtype, grad))
    for index, sample in enumerate(given):
        yield as_sample(sample, index)


def info_of_opinfo(
    operator: Any, *, ref: Callable[..., Any] | None = None, **known: Any
) -> FunctionInfo:
    """A ``FunctionInfo`` from a torch ``OpInfo``.

    Args:
        operator: The torch record.
        ref: A plain-torch reference.
        **known: Further fields of ``FunctionInfo``.

    Returns:
        The record; its ``op`` looks ``apply`` up at each call, so that ``funcaot.install`` counts.
    """
    owner = getattr(operator.op, "__self__", None)
    is_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)

    def apply(*args: Any, **kwargs: Any) -> Any:
        assert owner is not None
        return owner.apply(*args, **kwargs)

    fields = {
        "name": full_name(operator),
        "supports_autograd": operator.supports_autograd,
        "supports_gradgrad": operator.supports_gradgrad,
        "supports_forward_ad": operator.supports_forward_ad,
        **known,
    }
    return FunctionInfo(
        op=apply if is_function else operator.op,
        sample_source=lambda device, dtype: samples_of(operator, device, dtype),
        ref=ref,
        function=owner if is_function else None,
        **fields,
    )
