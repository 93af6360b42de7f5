"""A reported silent error as data, and the small vocabulary that cases are written in.

A case is built with a compiler, a function of a function: the identity for eager,
``torch.compile`` and ``funcaot.compile``. It returns ``call(step)``, which is called with 0, 1 and
2, makes its inputs anew (``step`` may choose other values, sizes or state) and returns everything
that is to be compared, as a tuple or dictionary. A tensor there stands for its dtype, shape,
strides, ``requires_grad`` and values, and for whom it shares memory with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Compiler = Callable[[Any], Any]
Call = Callable[[int], Any]
Build = Callable[[Compiler], Call]

STEPS = (0, 1, 2)
PYTORCH = "https://github.com/pytorch/pytorch/issues/"


@dataclass(frozen=True)
class Case:
    """One reported silent error.

    Attributes:
        name: Says what the program does.
        group: The class of errors.
        issue: Where it was reported: a number of pytorch's tracker, the address of another one,
            or None for what was found while looking at its neighbours.
        wrong: What went wrong upstream, in a sentence.
        build: Makes the calls from a compiler.
        oracle: What is right in each step, where eager itself is wrong.
        refuses: Why funcaot may refuse the program by name, where it does.
    """

    name: str
    group: str
    issue: int | str | None
    wrong: str
    build: Build
    oracle: Call | None = None
    refuses: str | None = None

    @property
    def link(self) -> str:
        """Where it was reported, as Markdown."""
        if self.issue is None:
            return "found here"
        if isinstance(self.issue, int):
            return f"[#{self.issue}]({PYTORCH}{self.issue})"
        owner, number = self.issue.split("/")[-3], self.issue.split("/")[-1]
        return f"[{owner}#{number}]({self.issue})"


@dataclass
class Group:
    """A class of silent errors; its cases are added in the order of their file."""

    title: str
    cases: list[Case]

    def case(
        self,
        wrong: str,
        *,
        issue: int | str | None,
        oracle: Call | None = None,
        refuses: str | None = None,
    ) -> Callable[[Build], Build]:
        """Register a builder as a case; its name becomes the case's."""

        def register(build: Build) -> Build:
            name = build.__name__.replace("_", " ")
            found = Case(name, self.title, issue, wrong, build, oracle, refuses)
            self.cases.append(found)
            return build

        return register


def numbers(*shape: int, step: int = 0, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """Normally distributed numbers, the same for the same arguments."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(shape, generator=generator).to(dtype or torch.float32)


def leaf(*shape: int, step: int = 0, seed: int = 0) -> Tensor:
    """Such numbers, which gradients are taken with respect to."""
    return numbers(*shape, step=step, seed=seed).requires_grad_()


def grads(
    outputs: Tensor | Sequence[Tensor], inputs: Sequence[Tensor], **settings: Any
) -> list[Tensor | None]:
    """Gradients of weighted sums, as tensors of their own."""
    several = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    total = sum((_weights(output) * output).sum() for output in several)
    found = torch.autograd.grad(total, list(inputs), allow_unused=True, **settings)
    return [None if gradient is None else gradient.clone() for gradient in found]


def _weights(output: Tensor) -> Tensor:
    """Another weight for each element, so that no gradient is right by chance."""
    counted = torch.arange(1, output.numel() + 1, dtype=torch.float32)
    return (counted / output.numel()).reshape(output.shape).to(output.dtype)


def raised(thunk: Callable[[], Any]) -> str:
    """The name of the error that a call raises, or what it did instead."""
    try:
        thunk()
    except Exception as error:  # noqa: BLE001 - whichever it is, is what is compared
        return type(error).__name__
    return "no error"


def autograd_state(tensor: Tensor) -> dict[str, Any]:
    """A tensor's place in autograd's graph, and how often it was written to."""
    return {
        "is_leaf": tensor.is_leaf,
        "has grad_fn": tensor.grad_fn is not None,
        "version": tensor._version,
    }
