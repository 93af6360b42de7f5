"""Functions whose programs were saved, as another process would have them."""

import torch

import funcaot
from funcaot.aot.runtime.artifact import LoadedEntry
from funcaot.aot.runtime.module import compiled_of


def compiled_function(compiled):
    """The compiled function behind a function or a module."""
    return compiled_of(compiled) if isinstance(compiled, torch.nn.Module) else compiled


def is_loaded(compiled) -> bool:
    """Whether all programs that exist are from a file."""
    entries = compiled_function(compiled).entries
    return bool(entries) and all(isinstance(entry, LoadedEntry) for entry in entries)


def misses(compiled) -> int:
    """How often calls were captured."""
    return compiled_function(compiled).settings.statistics.cache_misses


def reloaded(function, first, path, *, backend="eager", **options):
    """A function that finds what ``first(compiled)`` made it compile.

    Args:
        function: A function or a module.
        first: Calls it, and its derivatives.
        path: Where the programs are kept.
        backend: That of both.
        **options: Others.
    """
    compiled = funcaot.compile(function, backend=backend, **options)
    first(compiled)
    saved = compiled.save(path)
    assert saved.programs, saved
    return funcaot.compile(function, backend=backend, artifacts=path, **options)
