"""What a program would have served that is most like a call: what differs kept the call from it."""

from __future__ import annotations

import dataclasses
from typing import Any

from funcaot.aot.graph.spec_sizes import is_like
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.numbers import Numbers
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Sizes, concrete

__all__ = ["nearest"]


def nearest(
    made_for: Signature, sizes: Sizes | None, numbers: Numbers | None, signature: Signature
) -> Signature:
    """The call that a program serves and that is most like another one.

    Its open sizes and numbers are those of the other call. They are those that the program was
    made for where nothing but them keeps it from the call: 0 and 1, or what it asked about them.

    Args:
        made_for: What the call looked like that the program was made for.
        sizes: Sizes that it leaves open, if it does.
        numbers: Numbers that it leaves open, if it does.
        signature: The other call.
    """
    if made_for.tree != signature.tree or (sizes is None and numbers is None):
        return made_for
    leaves: list[Any] = list(made_for.leaves)
    if sizes is not None:
        leaves = _with_sizes(leaves, sizes, signature)
    for position in numbers.kinds if numbers is not None else ():
        leaf = signature.leaves[position]
        fits = numbers is not None and numbers.fits(position, leaf)
        leaves[position] = leaf if fits else made_for.leaves[position]
    found = dataclasses.replace(made_for, leaves=tuple(leaves))
    return made_for if found == signature else found


def _with_sizes(leaves: list[Any], sizes: Sizes, signature: Signature) -> list[Any]:
    """The leaves of a program's call with the sizes of another one, where these can be read."""
    known = sizes.signature.leaves
    shown = {source.index for source in sizes.sources} & set(range(len(signature.leaves)))
    for index in shown:
        given, wanted = signature.leaves[index], known[index]
        if isinstance(given, TensorSpec) and isinstance(wanted, TensorSpec):
            rank = len(given.shape) == len(wanted.shape)
            if rank and (wanted.structure is None or is_like(given, wanted)):
                continue
        return leaves
    read = sizes.read(signature.leaves)
    if not sizes.are_large_enough(read):
        return leaves
    numbers = dict(zip(sizes.environment.symbols, read, strict=True))
    return [
        concrete(opened, numbers) if isinstance(leaf, TensorSpec) else leaf
        for leaf, opened in zip(leaves, known, strict=True)
    ]
