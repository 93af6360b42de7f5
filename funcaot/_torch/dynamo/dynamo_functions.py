"""User Functions in the graphs that Dynamo captures for us: whole, as if allowed in the graph.

Dynamo traces a Function's backward by itself, for gradients that it assumes and with grad mode
off, so that a double backward finds constants. Under this backend the tape traces the backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import fx

__all__ = ["compiled_in", "is_traced_function", "keep_functions_whole"]

_MARK = "_funcaot_original"


def is_traced_function(node: fx.Node) -> bool:
    """Whether a node is a Function that Dynamo traced itself, forward and backward."""
    return str(node.target) == "autograd_function_apply"


def keep_functions_whole(backend: Callable[..., Any]) -> None:
    """Let Functions be one call in graphs for a backend, where their forward runs on fakes.

    Other backends see what they saw before. It does nothing if done already.

    Args:
        backend: The function that ``torch.compile`` resolves the backend to.
    """
    from torch._dynamo.variables import misc

    variable: Any = misc.AutogradFunctionVariable
    original = variable.call_apply
    if hasattr(original, _MARK):
        return

    def call_apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _backend_of(tx) is backend:
            found = _whole(self.fn_cls, tx, args, kwargs)
            if found is not None:
                return found
        return original(self, tx, args, kwargs)

    setattr(call_apply, _MARK, original)
    variable.call_apply = call_apply


def _backend_of(tx: Any) -> Any:
    """What the graph that is being captured goes to, without torch.compile's wrappers."""
    from torch._dynamo.eval_frame import innermost_backend

    found = tx.output.compiler_fn
    while found is not None:
        found = innermost_backend(found)
        wrapped = getattr(found, "unconfigured_compiler_fn", None)
        wrapped = getattr(found, "compiler_fn", None) if wrapped is None else wrapped
        if wrapped is None:
            return found
        found = wrapped
    return None


def _whole(function: type, tx: Any, args: Any, kwargs: Any) -> Any:
    """The call as one node; None where an argument or the forward can't be in a graph."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported
    from torch._dynamo.utils import proxy_args_kwargs
    from torch._dynamo.variables.builder import wrap_fx_proxy
    from torch._dynamo.variables.misc import produce_trampoline_autograd_apply

    call = produce_trampoline_autograd_apply(function)
    try:
        given = proxy_args_kwargs(args, kwargs)
        proxy = tx.output.create_proxy("call_function", call, *given)
        return wrap_fx_proxy(tx=tx, proxy=proxy)
    except (Unsupported, TorchRuntimeError, NotImplementedError):
        graph = tx.output.current_tracer.graph
        for node in graph.find_nodes(op="call_function", target=call):
            graph.erase_node(node)
        return None


def compiled_in(compiled: Any) -> list[Any]:
    """What funcaot made of a function or a module that ``torch.compile`` compiled.

    Args:
        compiled: What ``torch.compile`` returned.

    Returns:
        What Dynamo's code calls, also after graph breaks, as far as it can be found.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return []
    module = getattr(compiled, "_orig_mod", None)
    pending: list[Any] = [compiled._torchdynamo_orig_callable]
    if module is not None:
        inner = getattr(compiled.forward, "_torchdynamo_orig_callable", None)
        pending += [inner, module.forward, type(module).__call__]
    found: dict[int, Any] = {}
    seen: set[Any] = set()
    while pending:
        current = pending.pop()
        code = getattr(current, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        for entry in frames._debug_get_cache_entry_list(code):
            for name in entry.code.co_names:
                value = current.__globals__.get(name)
                if name.startswith("__resume_at"):
                    pending.append(value)
                elif name.startswith("__compiled_fn"):
                    value = getattr(value, "_torchdynamo_orig_callable", value)
                    value = getattr(value, "funcaot_compiled", None)
                    if value is not None:
                        found[id(value)] = value
    return list(found.values())
