"""Modules that Inductor generated, as data: their text, the libraries of their kernels, constants.

``aot.saved`` takes them apart and makes them again. Making one imports nothing of Inductor, unless
the module calls a helper of its: what such modules import is given to them, and kernels come from
libraries that are compiled already. The text is a program: whoever makes a module of it trusts it.
"""

from __future__ import annotations

import ast
import builtins
import contextvars
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _config_module

from funcaot._torch.distributed.collectives import COLLECTIVES, load_ops, position_of_group

# Modules that what is generated for a CPU may import, besides Python's own and torch.
_ASYNC = "torch._inductor.async_compile"
_EXTERN = "torch._inductor.select_algorithm"
_PRODUCTS = "funcaot._torch.inductor.products"
_HELPERS = (
    "torch._inductor.hooks",
    "torch._inductor.utils",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.multi_kernel",
)
_KERNELS_MODULE = re.compile(r"(^|\.)kernels?$")
_OPS = re.compile(r"torch\.ops\.(\w+)")
# Namespaces of ops that torch itself and funcaot define.
_OWN_OPS = {"aten", "prims", "inductor", "_quantized", "quantized", "mkldnn", "funcaot"}
_KNOWN_OPS = {*_OWN_OPS, *COLLECTIVES}
_VARIABLE = re.compile(r"[\"']([A-Z][A-Z0-9_]{2,})[\"']")
_OF_RANKS = {"ROLE_RANK", "MAST_HPC_JOB_NAME"}  # Which logs are written, by rank.
_OTHER_KERNELS = re.compile(r"async_compile\.(?!cpp_pybinding\(|wait\()(\w+)")
# What Inductor calls by these names, so that its tables needn't be loaded.
_EXTERN_KERNELS: dict[str, Any] = {
    name: getattr(torch, name) for name in ("mm", "bmm", "addmm", "baddbmm", "convolution")
}


class GeneratedError(Exception):
    """A module isn't one that can be taken apart or made again; the text says why."""


@dataclass(frozen=True, eq=False)
class Generated:
    """A generated module as data.

    Attributes:
        text: Its source.
        kernels: For each variable that holds a kernel, its library's digest and its name there.
        libraries: By digest.
        constants: Tensors that the module got from outside.
        groups: For each variable that stands for the name of a group of ranks, the name.
    """

    text: str
    kernels: dict[str, tuple[str, str]]
    libraries: dict[str, bytes]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)


def taken_apart(run: Callable[..., Any]) -> Generated:
    """The module of what Inductor made of a graph.

    Raises:
        GeneratedError: If it isn't a module for a CPU, or has parts that aren't in its text.
    """
    scope = getattr(getattr(run, "__func__", run), "__globals__", {})
    if scope.get("call") != run or "__file__" not in scope:
        raise GeneratedError("Inductor wrapped what it made")
    text = Path(scope["__file__"]).read_text(encoding="utf-8")
    other = _OTHER_KERNELS.search(text)
    if other is not None:
        raise GeneratedError(f"it has kernels made by {other[1]}")
    strangers = {name for name in _OPS.findall(text) if name not in _KNOWN_OPS}
    if strangers:
        raise GeneratedError(f"it calls ops of {', '.join(sorted(strangers))}")
    kernels: dict[str, tuple[str, str]] = {}
    libraries: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    constants: dict[str, torch.Tensor] = {}
    for name, value in scope.items():
        if isinstance(value, torch.Tensor):
            constants[name] = value
        owner = getattr(value, "__self__", None)
        if not isinstance(value, types.BuiltinFunctionType) or not _is_of_kernels(owner):
            continue
        path = str(vars(owner)["__file__"])
        if path not in digests:
            content = Path(path).read_bytes()
            digests[path] = hashlib.sha256(content).hexdigest()
            libraries[digests[path]] = content
        kernels[name] = (digests[path], value.__name__)
    text, groups = without_groups(text.partition("\ndef get_args():")[0])
    return Generated(text, kernels, libraries, constants, groups)


def _is_of_kernels(owner: Any) -> bool:
    return (
        isinstance(owner, types.ModuleType)
        and _KERNELS_MODULE.search(owner.__name__) is not None
        and str(getattr(owner, "__file__", "")).endswith(".so")
    )


def without_groups(text: str) -> tuple[str, dict[str, str]]:
    """A module's text with variables for the names of groups, and the name that each stands for.

    Raises:
        GeneratedError: If a collective is called in a way that isn't known.
    """
    if not any(f"torch.ops.{name}." in text for name in COLLECTIVES):
        return text, {}
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    variables: dict[str, str] = {}
    found: list[tuple[int, int, int, str]] = []
    for call in ast.walk(ast.parse(text)):
        name = _collective_in(call) if isinstance(call, ast.Call) else ""
        if not isinstance(call, ast.Call) or not name:
            continue
        namespace, packet, overload = name.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        place = position_of_group(op)
        if place is None:
            continue
        group = call.args[place] if place < len(call.args) else None
        if not isinstance(group, ast.Constant) or not isinstance(group.value, str):
            raise GeneratedError(f"it calls {name} with a group that isn't named")
        variable = variables.setdefault(group.value, f"funcaot_group_{len(variables)}")
        found.append((group.lineno - 1, group.col_offset, group.end_col_offset or 0, variable))
    for line, start, end, variable in sorted(found, reverse=True):
        lines[line] = lines[line][:start] + variable.encode() + lines[line][end:]
    return b"".join(lines).decode(), {variable: name for name, variable in variables.items()}


def _collective_in(call: ast.Call) -> str:
    """The collective that is called, if one is."""
    name = ast.unparse(call.func)
    if not name.startswith("torch.ops."):
        return ""
    name = name.removeprefix("torch.ops.")
    return name if name.partition(".")[0] in COLLECTIVES and name.count(".") == 2 else ""


def made(generated: Generated, library: Callable[[str], Path]) -> Callable[..., Any]:
    """The module's function on a list of tensors, which it empties.

    Args:
        generated: The module, whose text and libraries the caller trusts.
        library: Where the library of a digest is.

    Raises:
        GeneratedError: If it can't be made with this torch.
    """
    kernels = {
        name: getattr(_loaded(library(digest), digest, attribute), attribute)
        for name, (digest, attribute) in generated.kernels.items()
    }
    if "torch.ops.prims." in generated.text:
        importlib.import_module("torch._inductor.inductor_prims")
    given = _Given(kernels)
    scope: dict[str, Any] = {
        "__name__": "funcaot_generated",
        "__builtins__": {**vars(builtins), "__import__": given.import_},
        **generated.constants,
        **generated.groups,
    }
    if any(f"torch.ops.{name}." in generated.text for name in COLLECTIVES):
        load_ops()
    try:
        exec(compile(generated.text, "<a graph of a funcaot artifact>", "exec"), scope)
    except Exception as error:
        raise GeneratedError(f"{type(error).__name__}: {error}") from error
    missing = [name for name, value in scope.items() if isinstance(value, _Waiting)]
    if missing or not callable(scope.get("call")):
        raise GeneratedError(f"it lacks {', '.join(missing) or 'its function'}")
    scope.update(generated.constants)
    return scope["call"]


# --- kernels ------------------------------------------------------------------------------------

_libraries: dict[tuple[str, str], Any] = {}


def _loaded(path: Path, digest: str, attribute: str) -> Any:
    """The Python module of a library; one that Inductor makes by itself has one kernel."""
    entry = "kernel" if attribute == "kernel" else "kernels"
    known = _libraries.get((digest, entry))
    if known is not None:
        return known
    from torch._C._dynamo import guards

    pointer = guards.__dict__["_torchinductor_pyobject_tensor_data_ptr"]
    if entry == "kernel":
        os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(pointer)
    spec = importlib.util.spec_from_file_location(f"{digest}.{entry}", path)
    if spec is None or spec.loader is None:
        raise GeneratedError(f"{path} isn't a library")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    if hasattr(found, "connect"):
        found.connect(pointer)
    _libraries[digest, entry] = found
    return found


class _Waiting:
    """What stands for a kernel until the module waits for them."""


class _Given:
    """What a generated module imports."""

    def __init__(self, kernels: Mapping[str, Any]) -> None:
        self._kernels = kernels
        self._modules: dict[str, Any] = {
            _ASYNC: SimpleNamespace(AsyncCompile=lambda: self),
            _EXTERN: SimpleNamespace(extern_kernels=_Extern()),
            **{name: _Later(name) for name in _HELPERS},
        }

    def import_(self, name: str, *rest: Any, **keywords: Any) -> Any:
        """Python's ``__import__`` for the module."""
        if name == _PRODUCTS and "run_product" in self._kernels:
            products = importlib.import_module(_PRODUCTS)
            native = SimpleNamespace(run=self._kernels["run_product"])
            return SimpleNamespace(native=lambda: native, packed=products.packed)
        found = self._modules.get(name)
        return builtins.__import__(name, *rest, **keywords) if found is None else found

    def cpp_pybinding(self, argument_types: Any, source: str) -> Any:
        """A kernel is named by the variable that it is assigned to."""
        return _Waiting()

    def wait(self, scope: dict[str, Any]) -> None:
        """Put the kernels in their places."""
        for name, value in scope.items():
            if isinstance(value, _Waiting) and name in self._kernels:
                scope[name] = self._kernels[name]


class _Extern:
    """Kernels of torch under the names that Inductor has for them."""

    def __getattr__(self, name: str) -> Any:
        found = _EXTERN_KERNELS.get(name)
        if found is None:
            found = getattr(importlib.import_module(_EXTERN).extern_kernels, name)
        return found


class _Later:
    """A module of which functions are imported when they are called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Callable[..., Any]:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(self._name), attribute)(*args, **kwargs)

        return call


def settings_of_inductor() -> str:
    """A digest of the options that Inductor generates code by.

    They are what its environment variables say, but for what was changed since. Nobody has changed
    them where Inductor isn't imported; to import it takes a second.
    """
    told = [(name, os.environ[name]) for name in _variables() if name in os.environ]
    config = sys.modules.get("torch._inductor.config")
    changed = {} if config is None else _changed(config)
    return hashlib.sha256(repr((told, sorted(changed.items(), key=str))).encode()).hexdigest()


@functools.cache
def _variables() -> list[str]:
    """The environment variables that these options are read from."""
    text = (Path(torch.__file__).parent / "_inductor" / "config.py").read_text()
    return sorted(set(_VARIABLE.findall(text)) - _OF_RANKS)


def _changed(config: Any) -> dict[str, Any]:
    """The public options that have another value than the one that they were imported with."""
    found: dict[str, Any] = {}
    for name, value in config.save_config_portable(ignore_private_configs=True).items():
        entry = config._config[name]
        own = entry.user_override
        own = own.get() if isinstance(own, contextvars.ContextVar) else own
        at_first = entry.default
        if entry.env_value_default is not _config_module._UNSET_SENTINEL:
            at_first = entry.env_value_default
        if own is not _config_module._UNSET_SENTINEL and repr(own) != repr(at_first):
            found[name] = value
    return found
