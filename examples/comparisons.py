"""Three programs, each run eagerly, with ``torch.compile`` and with ``funcaot.compile``.

A compiled program is right when it gives what the same program gives without a compiler.

    python examples/comparisons.py
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import funcaot

Compiler = Callable[[Callable], Callable]


class ByLayout(torch.autograd.Function):
    """Its backward has one kernel for contiguous gradients and another one for the rest."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> Tensor:
        return grad_output * 2 if grad_output.is_contiguous() else grad_output * 3


class Scale(torch.autograd.Function):
    """Twice its input, with a backward that knows what to do with a sparse gradient."""

    @staticmethod
    def forward(table: Tensor) -> Tensor:
        return table * 2

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> Tensor:
        return (grad_output.to_dense() if grad_output.is_sparse else grad_output) * 2


def layout_dependent_backward(compiler: Compiler) -> Tensor:
    """Call the gradient with a contiguous, then with a transposed tangent."""
    function = compiler(lambda x: ByLayout.apply(x))
    gradients = []
    for tangent in (torch.ones(2, 3), torch.ones(3, 2).t()):
        x = torch.ones(2, 3, requires_grad=True)
        gradients += torch.autograd.grad(function(x), x, tangent)
    return torch.stack(gradients)


def in_place_on_the_output(x: Tensor) -> Tensor:
    """A program with a mutation, and a custom Function."""
    return ByLayout.apply(x).add_(1)


def functionalize_of_a_function(compiler: Compiler) -> Tensor:
    """Remove the mutation from that program."""
    return compiler(torch.func.functionalize(in_place_on_the_output))(torch.ones(2, 3))


def sparse_gradient(compiler: Compiler) -> Tensor:
    """Give the backward a sparse gradient, as the lookup of a few rows does."""
    table = torch.ones(4, 2, requires_grad=True)
    tangent = torch.sparse_coo_tensor([[1]], [[1.0, 1.0]], size=(4, 2), check_invariants=True)
    out = compiler(lambda table: Scale.apply(table))(table)
    return torch.autograd.grad(out, table, tangent)[0]


@dataclass(frozen=True)
class Comparison:
    """A program, and what it should give: computed without any compiler or transform."""

    title: str
    run: Callable[[Compiler], Tensor]
    expected: Callable[[], Tensor]

    def verdict(self, compiler: Compiler) -> str:
        """Run with ``compiler`` and say in a few words what came out."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = self.run(compiler)
        except Exception as error:  # noqa: BLE001 (whatever it raises is the result)
            # The innermost exception says most.
            while (cause := error.__cause__ or getattr(error, "inner_exception", None)) is not None:
                error = cause
            return f"{type(error).__name__}: {shortened(str(error))}"
        expected = self.expected()
        if torch.equal(got, expected):
            return "right"
        wrong = got != expected
        return f"WRONG: {got[wrong][0]:g}, not {expected[wrong][0]:g}"


def shortened(message: str, limit: int = 60) -> str:
    """The first line, cut at a word."""
    return textwrap.shorten((message.splitlines() or [""])[0], limit, placeholder=" ...")


def eagerly(function: Callable) -> Callable:
    """The compiler that does nothing."""
    return function


COMPILERS = {"eager": eagerly, "torch.compile": torch.compile, "funcaot": funcaot.compile}

COMPARISONS = (
    Comparison(
        "backward that depends on the layout",
        layout_dependent_backward,
        lambda: torch.tensor([2.0, 3.0]).view(2, 1, 1).expand(2, 2, 3),
    ),
    Comparison(
        "functionalize of a Function",
        functionalize_of_a_function,
        lambda: in_place_on_the_output(torch.ones(2, 3)),
    ),
    Comparison("sparse grad_output", sparse_gradient, lambda: sparse_gradient(eagerly)),
)


def comparison_table() -> Table:
    """Run every program with every compiler."""
    table = Table("program", *COMPILERS, title="The same program, run three ways")
    for comparison in COMPARISONS:
        verdicts = (comparison.verdict(compiler) for compiler in COMPILERS.values())
        table.add_row(comparison.title, *verdicts)
    return table


if __name__ == "__main__":
    Console(highlight=False, width=100).print(comparison_table())
