"""The functions that people call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import torch

from funcaot.aot.graph.policy import Choice, Policy
from funcaot.aot.graph.policy import resolve as resolve_policy
from funcaot.aot.runtime.artifact import Artifacts
from funcaot.aot.runtime.compiled import CompiledFunction, compiled_function
from funcaot.aot.runtime.module import functions_of
from funcaot.aot.runtime.outermost import follow_transforms
from funcaot.backends import resolve
from funcaot.backends.compiler import Compiler, CompilerFunction
from funcaot.backends.custom import from_functions
from funcaot.base.torch_keywords import translated
from funcaot.distributed.wrapped import compiled as compiled_module
from funcaot.errors import FuncaotError, UnsupportedError

Backend = str | CompilerFunction | Compiler
Residuals = str | Choice | Policy
M = TypeVar("M", bound=torch.nn.Module)
P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """What ``compile`` returns without a function: it keeps the signature of what it is put on."""

    @overload
    def __call__(self, function: M, /) -> M: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> CompiledFunction[P, R]: ...


@overload
def compile(
    function: M,
    *,
    backend: Backend = "inductor",
    policy: Residuals = "balanced",
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
    artifacts: str | os.PathLike[str] | None = None,
    **torch_keywords: Any,
) -> M: ...
@overload
def compile(
    function: Callable[P, R],
    *,
    backend: Backend = "inductor",
    policy: Residuals = "balanced",
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
    artifacts: str | os.PathLike[str] | None = None,
    **torch_keywords: Any,
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    function: None = None,
    *,
    backend: Backend = "inductor",
    policy: Residuals = "balanced",
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
    artifacts: str | os.PathLike[str] | None = None,
    **torch_keywords: Any,
) -> Decorator: ...
def compile(
    function: Any = None,
    *,
    backend: Backend = "inductor",
    policy: Residuals = "balanced",
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
    artifacts: str | os.PathLike[str] | None = None,
    **torch_keywords: Any,
) -> Any:
    """Compile a function or a module, lazily and ahead of time.

    A call captures the function on fake tensors and compiles its forward. The backward is
    traced only when autograd invokes it, with the real grad_outputs: their strides, layout and
    dtype, and which are None.

    Args:
        function: A function of (pytrees of) tensors, or an ``nn.Module``. Without it, a
            decorator is returned.
        backend: ``"inductor"``, ``"eager"`` (run the captured graphs as they are), or a function
            ``(graph_module, example_inputs) -> callable``.
        policy: What is kept for the backward. ``"balanced"`` computes pointwise ops again;
            ``"memory"`` also normalizations, reductions and indexing; ``"save_all"`` keeps what
            autograd saves. A function of a ``Candidate`` returns True to keep it, False to
            compute it again, None for the balanced choice. Random ops and user Functions never
            run twice; ``torch.utils.checkpoint`` inside ``function`` is honoured, its
            ``context_fn`` is not.
        dynamic: Which sizes of arguments one program serves. By default the first compilation is
            for the sizes of its call, and a size that is another one at the next compilation is
            left open; True leaves all open, False none. Sizes of 0 and 1 have programs of their
            own, and tensors that ``function`` closes over keep their sizes. See ``mark_dynamic``.
        fullgraph: Whether a call that can't be captured is an error, which says why. With False it
            runs as it is, and a ``CaptureWarning`` says why; so do calls that look like it, without
            a warning, until ``clear()``. What only a backward meets is an error always. By default
            the configuration says which: an error.
        artifacts: A file that ``compiled.save(path)`` wrote, in another process or on another
            rank. Calls that it serves run without being captured or compiled; others, or all if
            there is no such file, are captured as usual, and the report says why.
        **torch_keywords: Those of ``torch.compile``: ``disable`` (True gives ``function`` back),
            ``mode="default"``. What means nothing here is refused with what to do instead.

    Returns:
        A function that is called like ``function``; for a module, a module that shares
        parameters, buffers and hooks with it.

    Raises:
        FuncaotError: If ``function`` isn't callable, the backend is unknown, or ``artifacts`` isn't
            a path.
        UnsupportedError: If it is a coroutine or generator function.

    Example:
        >>> import funcaot, torch
        >>> @funcaot.compile(backend="eager")
        ... def energy(x):
        ...     return (x.sin() ** 2).sum()
        >>> x = torch.ones(3, requires_grad=True)
        >>> (force,) = torch.autograd.grad(energy(x), x, create_graph=True)
        >>> force.sum().backward()
        >>> torch.allclose(x.grad, 2 * torch.cos(2 * x))
        True
    """
    if translated(torch_keywords):
        return function if function is not None else lambda decorated: decorated
    compiler, chosen = resolve(backend), resolve_policy(policy)
    for name, value in (("dynamic", dynamic), ("fullgraph", fullgraph)):
        _check_choice(name, value)
    given: dict[str, Any] = {
        "backend": backend,
        "policy": policy,
        "dynamic": dynamic,
        "fullgraph": fullgraph,
        "artifacts": artifacts,
    }
    if function is None:
        return lambda decorated: compile(decorated, **given)
    if isinstance(function, torch.nn.Module):
        module = compiled_module(function, compiler, chosen, dynamic, fullgraph)
        _take_from(artifacts, *functions_of(module))
        return module
    if isinstance(function, classmethod | staticmethod):
        return type(function)(compile(function.__func__, **given))
    _check(function)
    name = getattr(function, "__name__", type(function).__name__)
    name = name.replace("<lambda>", "lambda_")
    follow_transforms()
    compiled = compiled_function(function, compiler, name, chosen, dynamic, fullgraph)
    _take_from(artifacts, compiled)
    return compiled


_CHOICES = {
    "dynamic": "leave it out: sizes that change are left open by themselves. True opens all from "
    "the first call; funcaot.mark_dynamic opens single dimensions.",
    "fullgraph": "leave it out: what can't be captured is an error. False lets such calls run as "
    "they are.",
}


def _check_choice(name: str, value: object) -> None:
    """Refuse what is neither a truth value nor None."""
    if value is not None and not isinstance(value, bool):
        raise FuncaotError(
            f"funcaot.compile was given a value of `{name}` that it can't take.",
            expected="True, False or None",
            got=repr(value),
            remedy=_CHOICES[name],
        )


def _take_from(artifacts: Any, *compiled: CompiledFunction) -> None:
    """Let calls look for their programs in a file.

    Raises:
        FuncaotError: If it isn't a path.
    """
    if artifacts is not None and not isinstance(artifacts, str | os.PathLike):
        raise FuncaotError(
            "funcaot.compile was given `artifacts` that isn't a path.",
            expected="the path of a file that compiled.save(path) wrote",
            got=type(artifacts).__name__,
            remedy="pass a str or a pathlib.Path.",
        )
    found = None if artifacts is None else Artifacts(artifacts)
    for function in compiled:
        function.artifacts = None if found is None else found.for_another()


def _check(function: Any) -> None:
    """Refuse what a call of can't be compiled."""
    if not callable(function) or isinstance(function, type):
        raise FuncaotError(
            "funcaot.compile needs something to compile.",
            expected="a function or an nn.Module",
            got=f"the class {function.__name__}"
            if isinstance(function, type)
            else type(function).__name__,
            remedy=_instead_of(function),
        )
    for kind, found in (
        ("a coroutine function", inspect.iscoroutinefunction(function)),
        ("a generator function", inspect.isgeneratorfunction(function)),
        ("an asynchronous generator function", inspect.isasyncgenfunction(function)),
    ):
        if found:
            raise UnsupportedError(
                f"{getattr(function, '__name__', 'The function')} is {kind}: a call only makes an "
                "object, nothing is computed that could be compiled.",
                remedy="compile the functions that it calls.",
            )


def _instead_of(given: Any) -> str:
    """What to pass instead of something that isn't a function."""
    name = getattr(given, "__name__", "")
    if isinstance(given, type) and issubclass(given, torch.autograd.Function):
        return f"pass {name}.apply."
    if isinstance(given, type) and issubclass(given, torch.nn.Module):
        return f"pass a module, as in funcaot.compile({name}(...))."
    if isinstance(given, type):
        return f"pass a function that makes one, as in lambda x: {name}(x)."
    if isinstance(given, torch.Tensor):
        return "pass the function itself, not what a call of it returns."
    return "pass the function or the instance itself."


def aot_function(
    f: Callable[..., Any],
    fw_compiler: CompilerFunction,
    bw_compiler: CompilerFunction | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> CompiledFunction:
    """``functorch.compile.aot_function``, on the lazy pipeline.

    Args:
        f: Function of tensors.
        fw_compiler: Compiles the forward graph: ``(graph_module, example_inputs) -> callable``.
        bw_compiler: Compiles backward graphs, each when it is invoked; ``fw_compiler`` by default.
        partition_fn: Not used: there is no joint graph to partition. Only None is accepted.
        decompositions: Decompositions applied before compiling.

    Returns:
        The compiled function.

    Raises:
        FuncaotError: If ``partition_fn`` is given.

    Example:
        >>> import funcaot, torch
        >>> seen = []
        >>> def show(graph, inputs):
        ...     seen.append(graph)
        ...     return graph
        >>> f = funcaot.aot_function(lambda x: x.sin().sum(), show)
        >>> x = torch.ones(3, requires_grad=True)
        >>> f(x).backward()
        >>> len(seen)
        2
    """
    if partition_fn is not None:
        raise FuncaotError(
            "aot_function was given a partition_fn, but there is no joint graph to partition: "
            "the backward is traced after the forward has run.",
            expected="partition_fn=None",
            remedy="leave it out; residuals are chosen from what autograd saves.",
        )
    for name, value, kind in (
        ("fw_compiler", callable(fw_compiler), "a function"),
        ("bw_compiler", bw_compiler is None or callable(bw_compiler), "a function or None"),
        (
            "decompositions",
            decompositions is None or isinstance(decompositions, Mapping),
            "a dictionary of ops and functions, or None",
        ),
    ):
        if not value:
            raise FuncaotError(
                f"aot_function and aot_module can't take what was given as {name}.",
                expected=kind,
                remedy="funcaot.compile takes names of backends.",
            )
    compiler = from_functions(fw_compiler, bw_compiler, decompositions)
    return compile(f, backend=compiler)


def aot_module(
    mod: torch.nn.Module,
    fw_compiler: CompilerFunction,
    bw_compiler: CompilerFunction | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> torch.nn.Module:
    """``functorch.compile.aot_module``, on the lazy pipeline.

    Args and errors are those of ``aot_function``; ``mod`` is an ``nn.Module``.

    Returns:
        A module that shares parameters, buffers and hooks with ``mod``.

    Example:
        >>> import torch, funcaot
        >>> linear = torch.nn.Linear(3, 2)
        >>> module = funcaot.aot_module(linear, lambda graph, inputs: graph)
        >>> x = torch.ones(3)
        >>> torch.equal(module(x), linear(x))
        True
    """
    if not isinstance(mod, torch.nn.Module):
        raise FuncaotError(
            "aot_module needs a module.",
            expected="an nn.Module",
            got=type(mod).__name__,
            remedy="use aot_function for a function.",
        )
    function = aot_function(lambda: None, fw_compiler, bw_compiler, partition_fn, decompositions)
    return compiled_module(mod, function.settings.compiler)
