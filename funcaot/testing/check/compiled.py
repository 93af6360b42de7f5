"""The compiled column: the same rows for the compiled callable, and differentiated."""

from __future__ import annotations

from dataclasses import replace

from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.testing.composition import Composition, is_possible, missing_support, parse
from funcaot.testing.records import FunctionInfo
from funcaot.testing.transforms import TABLE

DIFFERENTIATED = ("autograd_of_compile", "autograd_of_autograd_of_compile")


def compiled_info(info: FunctionInfo, backend: str | None) -> FunctionInfo | None:
    """The record of the compiled callable; None where it is compiled, or isn't asked for."""
    if backend is None or isinstance(info.op, CompiledFunction) or not info.supports_compile:
        return None
    from funcaot.api import compile as funcaot_compile

    def call(*args: object, **kwargs: object) -> object:
        return info.op(*args, **kwargs)

    call.__name__ = info.name
    return replace(info, op=funcaot_compile(call, backend=backend))


def compiled_trials(info: FunctionInfo, chain: Composition) -> list[Composition]:
    """What a composition of the compiled callable is tried by: differentiated, where it can be.

    Args:
        info: The record of the compiled callable.
        chain: The composition of the row.

    Returns:
        The chain itself where it takes a derivative, else the chain and its gradient; nothing where
        compiling means nothing for it.
    """
    if chain.contains("compile") or chain.contains("make"):
        return []
    takes_derivative = any(entry.order for entry in chain.transforms)
    if takes_derivative:
        return [chain]
    gradient = Composition((TABLE["autograd"], *chain.transforms))
    usable = is_possible(gradient) and not missing_support(info, gradient)
    return [chain, gradient] if usable else [chain]


def is_compile(chain: Composition) -> bool:
    """Whether a chain only compiles."""
    return len(chain.transforms) == 1 and chain.contains("compile")


def differentiated(info: FunctionInfo, chain: Composition) -> list[Composition]:
    """What makes the row of a compiled call ok: its first and second derivatives."""
    names = [name.replace("compile", chain.name) for name in DIFFERENTIATED]
    chains = [parse(name) for name in names]
    return [found for found in chains if not missing_support(info, found)] or [chain]
