"""What the tests know about a Function: samples, a reference, supported rules, limitations."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.tensors.pytree import tree_map


@dataclass(frozen=True)
class Sample:
    """One call: ``op(*values, **kwargs)``, in the vocabulary of torch's ``SampleInput``.

    Attributes:
        input: The first positional argument.
        args: The other positional arguments; tensors that require grad are differentiated.
        kwargs: Keyword arguments; never differentiated.
        name: A short word for test ids, for example ``"transposed"``.

    Example:
        >>> import torch
        >>> from funcaot.testing import Sample
        >>> Sample(torch.ones(2, 3, requires_grad=True), (0.5,), name="matrix")
        Sample(float32[2, 3] grad, 0.5, name='matrix')
    """

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = "sample"

    @property
    def values(self) -> tuple[Any, ...]:
        """All positional arguments."""
        return (self.input, *self.args)

    def __repr__(self) -> str:
        """One line, never tensor data."""
        shown = [describe_value(value) for value in self.values]
        shown += [f"{key}={describe_value(value)}" for key, value in self.kwargs.items()]
        return f"Sample({', '.join(shown)}, name={self.name!r})"


@dataclass(frozen=True)
class Limitation:
    """A known gap, as data.

    Attributes:
        transform: A pattern over composition names (``fnmatch``), for example ``"vmap*"``.
        reason: Why it does not work, shown in the coverage table.
        strict: An unexpected pass is a failure.
        sample: A pattern over sample names that the gap is restricted to.

    Example:
        >>> from funcaot.testing import Limitation
        >>> Limitation("vmap*", "it is written with NumPy").covers("vmap_of_grad", "matrix")
        True
    """

    transform: str
    reason: str
    strict: bool = True
    sample: str = "*"

    def covers(self, composition: str, sample: str) -> bool:
        """Whether a test of this composition on this sample is expected to fail."""
        return fnmatch.fnmatchcase(composition, self.transform) and fnmatch.fnmatchcase(
            sample, self.sample
        )


SampleSource = Callable[[str, torch.dtype], Iterable[Any]]


@dataclass(frozen=True)
class FunctionInfo:
    """A Function and what is known of it, in the vocabulary of torch's ``OpInfo``.

    Attributes:
        name: The name in test ids.
        op: What is called: ``op(*sample.values, **sample.kwargs)``.
        sample_source: ``(device, dtype) -> samples``.
        ref: A plain-torch reference whose ordinary autograd derivative is the intended one, or
            None: derivatives are then compared with finite differences of ``op`` itself.
        dtypes: The dtypes that samples are made for.
        function: The Function class, where there is one.
        supports_autograd: It has a backward, or one can be generated.
        supports_gradgrad: The backward can be differentiated.
        supports_forward_ad: It has a jvp, or one can be generated.
        supports_vmap: It has a vmap rule, or one can be generated.
        supports_compile: The forward and the backward can be captured.
        true_derivative: The backward is the derivative of the forward (finite differences hold).
        linear_backward: The backward is linear in the cotangent.
        random: It draws random numbers.
        complex_output: It has a complex output even for real inputs.
        features: Words for the coverage table.
        limitations: Known gaps.
        tolerance: ``(rtol, atol)`` that replace the defaults of the dtype.

    Example:
        >>> import torch
        >>> from funcaot.testing import opinfo
        >>> info = opinfo(torch.sin, [torch.ones(2, dtype=torch.float64, requires_grad=True)])
        >>> info.name, info.dtypes, info.supports_vmap
        ('sin', (torch.float64,), True)
    """

    name: str
    op: Callable[..., Any]
    sample_source: SampleSource
    ref: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64,)
    function: Any = None
    supports_autograd: bool = True
    supports_gradgrad: bool = True
    supports_forward_ad: bool = True
    supports_vmap: bool = True
    supports_compile: bool = True
    true_derivative: bool = True
    linear_backward: bool = True
    random: bool = False
    complex_output: bool = False
    features: tuple[str, ...] = ()
    limitations: tuple[Limitation, ...] = ()
    tolerance: tuple[float, float] | None = None

    def sample_inputs(self, device: str, dtype: torch.dtype) -> Iterator[Sample]:
        """The samples, as ``Sample`` records with distinct names.

        Args:
            device: The device of every tensor.
            dtype: The dtype of the differentiable tensors.

        Yields:
            Samples; bare tensors and tuples of a user's source are wrapped.
        """
        for index, value in enumerate(self.sample_source(device, dtype)):
            yield as_sample(value, f"sample{index}")

    def limitation_for(self, composition: str, sample: str) -> Limitation | None:
        """The first known gap that covers this test."""
        return next((item for item in self.limitations if item.covers(composition, sample)), None)

    def __repr__(self) -> str:
        """The name only, so that pytest ids and tracebacks stay readable."""
        return f"FunctionInfo({self.name})"


def as_sample(value: Any, name: str) -> Sample:
    """Wraps what a user's sample source gave: a Sample, a tensor or a tuple of arguments."""
    if isinstance(value, Sample):
        return value
    if isinstance(value, tuple):
        return Sample(value[0] if value else None, tuple(value[1:]), name=name)
    return Sample(value, name=name)


def describe_value(value: Any) -> str:
    """``float64[3, 4]`` for a tensor, ``repr`` shortened for anything else."""
    if not isinstance(value, Tensor):
        return repr(value)[:40]
    dtype = str(value.dtype).removeprefix("torch.")
    marks = "" if value.is_contiguous() else " strided"
    marks += " grad" if value.requires_grad else ""
    return f"{dtype}{list(value.shape)}{marks}"


def copied_tensor(value: Any) -> Any:
    """A leaf of the same values, strides and requires_grad, with storage of its own."""
    if not isinstance(value, Tensor):
        return value
    tensor = value
    return copy.deepcopy(tensor.detach()).requires_grad_(tensor.requires_grad)


def copied_sample(sample: Any) -> Any:
    """A sample whose tensors are copies."""
    if not isinstance(sample, Sample):
        return tree_map(copied_tensor, sample)
    values, kwargs = tree_map(copied_tensor, (sample.values, sample.kwargs))
    return replace(sample, input=values[0], args=values[1:], kwargs=kwargs)


def opinfo(
    function: Any,
    sample_inputs: SampleSource | Sequence[Any],
    *,
    ref: Callable[..., Any] | None = None,
    **known: Any,
) -> FunctionInfo:
    """Describes a Function, or a plain callable built on one, for the generated tests.

    What the Function supports is read from the class (a ``vmap`` staticmethod, a
    ``generate_vmap_rule`` flag, ...) unless it is given.

    Args:
        function: An ``autograd.Function`` class, or any callable of tensors.
        sample_inputs: ``(device, dtype) -> samples``, or a list of samples. A sample is a tensor,
            a tuple of positional arguments, or a ``Sample``.
        ref: A plain-torch function with the intended values and derivatives. Without it,
            derivatives are compared with finite differences.
        **known: Further fields of ``FunctionInfo``.

    Returns:
        The record that ``parametrize_transforms`` takes.

    Example:
        >>> import torch
        >>> from funcaot.testing import opinfo
        >>> opinfo(torch.sin, lambda device, dtype: [torch.ones(3, dtype=dtype)])
        FunctionInfo(sin)
    """
    from funcaot.testing.rules import rules_of

    is_class = isinstance(function, type)
    fields = {
        "name": getattr(function, "__name__", type(function).__name__),
        "op": function.apply if is_class else function,
        "function": function if is_class else None,
        **(rules_of(function) if is_class else {}),
        **known,
    }
    source = sample_inputs if callable(sample_inputs) else fixed_source(sample_inputs)
    return FunctionInfo(sample_source=source, ref=ref, **fields)


def fixed_source(samples: Sequence[Any]) -> SampleSource:
    """A sample source that gives the same samples for every device and dtype.

    They are copied each time, strides included: a Function that writes into its inputs must not
    spoil the next test.
    """

    def source(device: str, dtype: torch.dtype) -> Iterable[Any]:
        return [copied_sample(sample) for sample in samples]

    return source
