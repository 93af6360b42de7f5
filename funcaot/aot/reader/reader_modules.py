"""Writes what a reader compares of modules; ``reader_source`` calls it among its checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from funcaot._torch.tensors.guards import hooks_of_all_modules
from funcaot.aot.closure.children import MODULE_HOOKS
from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.ran import is_library

if TYPE_CHECKING:
    from funcaot.aot.reader.reader_source import EnvironmentWriter

__all__ = ["write_modules"]

# Methods of modules by which code may see how many parameters and buffers there are.
_LISTING = ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict")


def write_modules(writer: EnvironmentWriter) -> None:
    """Modes, hooks and parts of modules, and what torch runs for all of them."""
    environment = writer.environment
    modules = [m for m in environment.objects.values() if isinstance(m, torch.nn.Module)]
    kinds = {*map(type, modules)}
    # Those that code names are made inside.
    named = [*environment.objects.values(), *(value for _, value in environment.identities)]
    kinds |= {k for k in named if isinstance(k, type) and issubclass(k, torch.nn.Module)}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        if is_library(module_of(kind)) and not issubclass(kind, torch.jit.ScriptModule):
            here, run = writer.source.constant(kind, "T"), writer.source.constant(kind.forward)
            writer.require(f"{here}.forward is {run}", f"{kind.__name__}.forward")
    if kinds:
        _require_hooks_of_all(writer)
    for identity, module in environment.objects.items():
        if not isinstance(module, torch.nn.Module) or identity in environment.unread:
            continue
        at = writer.variable(identity)
        if isinstance(module, torch.jit.ScriptModule):
            continue  # Its training mode is read like what else it holds.
        own, path = writer.dictionaries[identity], writer.says(identity)
        training = f"{own}['training']" if "training" in vars(module) else f"{at}.training"
        conditions = [f"{training} is {module.training}"]
        conditions += [_hooks_condition(own, module, hooks) for hooks in MODULE_HOOKS]
        if module._modules:
            conditions.append(f"len({own}['_modules']) == {len(module._modules)}")
        if environment.names.users_mention_any(_LISTING):
            for part in ("_parameters", "_buffers"):
                conditions.append(f"[*{own}[{part!r}]] == {[*vars(module)[part]]}")
        says = f"{path} is in {'training' if module.training else 'evaluation'} mode"
        change = f"told_module({path!r}, {module.training}, {at})"
        writer.require(" and ".join(conditions), f"{says}, its hooks and its parts", change)


def _require_hooks_of_all(writer: EnvironmentWriter) -> None:
    """Hooks that torch runs for every module."""
    hooks = hooks_of_all_modules()
    known = [(writer.source.constant(each, "hooks"), [*each]) for each in hooks]
    conditions = [f"[*{name}] == {keys}" if keys else f"not {name}" for name, keys in known]
    writer.require(" and ".join(conditions), "the hooks of all modules")


def _hooks_condition(own: str, module: torch.nn.Module, hooks: str) -> str:
    present = getattr(module, hooks)
    if not present:
        return f"not {own}[{hooks!r}]"
    return f"[*{own}[{hooks!r}]] == {list(present)}"
