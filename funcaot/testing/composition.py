"""Chains of transforms: their names, which ones make sense, which ones a Function supports."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from funcaot.errors import FuncaotError
from funcaot.testing.program import Program
from funcaot.testing.records import FunctionInfo
from funcaot.testing.transforms import TABLE
from funcaot.testing.transforms.record import Transform

SEPARATOR = "_of_"
# Depth three and four: each transform below, above and between others.
CHOSEN = (
    "autograd_of_autograd_of_autograd",
    "grad_of_grad_of_grad",
    "jvp_of_jvp_of_jvp",
    "vmap_of_grad_of_grad",
    "vmap_of_vmap_of_grad",
    "vmap_of_vmap_of_vmap",
    "vmap_of_jvp_of_grad",
    "grad_of_vmap_of_grad",
    "jvp_of_vmap_of_grad",
    "jacrev_of_vmap_of_grad",
    "functionalize_of_vmap_of_grad",
    "functionalize_of_jvp_of_vmap",
    "vmap_of_functionalize_of_vjp",
    "autograd_of_vmap_of_vjp",
    "dual_of_vmap_of_grad",
    "vmap_of_grad_of_vmap_of_grad",
    "jvp_of_grad_of_vmap_of_jvp",
    "functionalize_of_vmap_of_jvp_of_vjp",
    "autograd_of_vmap_of_functionalize_of_grad",
    "autograd_strided_of_compile",
    "grad_sum_of_compile",
    "compile_of_vmap_of_grad",
    "vmap_of_grad_of_compile",
    "grad_of_vmap_of_compile",
    "jvp_of_grad_of_compile",
    "autograd_of_autograd_of_compile",
    "compile_of_vmap_of_jvp_of_grad",
    "vmap_of_compile_of_vmap_of_grad",
)


@dataclass(frozen=True)
class Composition:
    """A chain of transforms, outermost first; an empty chain is the plain call.

    Attributes:
        transforms: Entries of the table.

    Example:
        >>> from funcaot.testing.composition import parse
        >>> [entry.name for entry in parse("vmap_of_grad").transforms]
        ['vmap', 'grad']
    """

    transforms: tuple[Transform, ...] = ()

    @property
    def name(self) -> str:
        """``vmap_of_grad``: the outermost transform first."""
        return SEPARATOR.join(entry.name for entry in self.transforms) or "call"

    @property
    def needs(self) -> frozenset[str]:
        """Which ``supports_*`` fields of a ``FunctionInfo`` the chain uses."""
        needed = frozenset().union(*(entry.needs for entry in self.transforms))
        return (
            needed | {"gradgrad"} if sum(entry.order for entry in self.transforms) > 1 else needed
        )

    def apply(self, program: Program) -> Program:
        """The program under the whole chain, innermost transform first."""
        for entry in reversed(self.transforms):
            program = entry.apply(program)
        return program

    def contains(self, name: str) -> bool:
        """Whether a transform of this name (or of its family) takes part."""
        return any(entry.name.split("_")[0] == name for entry in self.transforms)


def parse(name: str) -> Composition:
    """The chain of a name such as ``vmap_of_grad``.

    Args:
        name: Names of transforms joined by ``_of_``, outermost first; ``call`` is the empty chain.

    Raises:
        FuncaotError: A transform is not in the table.
    """
    if name.strip() == "call":
        return Composition()
    entries = []
    for word in name.strip().split(SEPARATOR):
        if word not in TABLE:
            near = difflib.get_close_matches(word, TABLE, n=1)
            raise FuncaotError(
                f"funcaot.testing knows no transform {word!r} (in {name!r}).",
                expected=f"names among call, {', '.join(TABLE)}, joined by '_of_'",
                got=repr(name),
                remedy=f"did you mean {near[0]!r}?"
                if near
                else "correct the name, or add an entry to funcaot.testing.transforms.",
            )
        entries.append(TABLE[word])
    return Composition(tuple(entries))


def is_possible(composition: Composition) -> bool:
    """Whether torch itself allows this order of transforms."""
    for position, entry in enumerate(composition.transforms):
        outside = composition.transforms[:position]
        if entry.base_only and not all(outer.base_only or is_neutral(outer) for outer in outside):
            return False
        # Dual numbers do not nest, and a torch.func.jvp is a level of the same kind.
        if entry.name == "dual" and any(
            "forward_ad" in other.needs for other in composition.transforms if other is not entry
        ):
            return False
    names = [entry.name for entry in composition.transforms]
    # Tracing over autograd's engine, and duals under batched grads, are beyond torch.
    if names.count("dual") > 1 or ("make_fx" in names and len(names) > 1):
        return False
    if names.count("batched_grads") and "dual" in names:
        return False
    if any(pair == ("functionalize", "functionalize") for pair in itertools.pairwise(names)):
        return False
    return names.count("compile") + names.count("compile_inductor") <= 1


def is_neutral(entry: Transform) -> bool:
    """Whether a transform leaves tensors plain: compiling does."""
    return entry.name.startswith("compile")


def missing_support(info: FunctionInfo, composition: Composition) -> tuple[str, ...]:
    """The ``supports_*`` fields that the chain needs and the Function lacks, without the prefix."""
    return tuple(
        sorted(need for need in composition.needs if not getattr(info, f"supports_{need}"))
    )


def applies(info: FunctionInfo, composition: Composition, dtype: torch.dtype) -> bool:
    """Whether the chain has a meaning for this Function and dtype."""
    if not info.linear_backward and any(entry.linear for entry in composition.transforms):
        return False
    is_complex = dtype.is_complex or info.complex_output
    if is_complex and any(entry.real_only for entry in composition.transforms):
        return False
    if info.random and not all(entry.reproducible for entry in composition.transforms):
        return False
    names = [entry.name for entry in composition.transforms]
    # The order in which nested batches draw random numbers is not specified.
    return not (info.random and sum(name.startswith("vmap") for name in names) > 1)


def singles() -> tuple[Composition, ...]:
    """The plain call and every transform by itself."""
    return (Composition(), *(Composition((entry,)) for entry in TABLE.values()))


def pairs() -> Iterator[Composition]:
    """Every composition of two transforms that torch allows and that is not a repetition."""
    composable = [entry for entry in TABLE.values() if not entry.depth_one]
    for outer in composable:
        for inner in composable:
            chain = Composition((outer, inner))
            if is_possible(chain) and "inductor" not in chain.name:
                yield chain


def chosen() -> tuple[Composition, ...]:
    """The compositions of depth three and four."""
    return tuple(parse(name) for name in CHOSEN)
