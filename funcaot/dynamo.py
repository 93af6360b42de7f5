"""``torch.compile(..., backend="funcaot")``: Dynamo captures, the lazy pipeline does the rest."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import fx

from funcaot._torch.dynamo.dynamo_functions import is_traced_function, keep_functions_whole
from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.api import compile as compile_function
from funcaot.errors import FuncaotError, UnsupportedError

_OPTIONS = ("compiler",)


def dynamo_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured.

    What ``torch.compile`` gains: a double backward, to any order, and backwards traced with the
    real grad_outputs. An ``autograd.Function`` is one call in the graph if its forward runs on
    fake tensors; else Dynamo traces it, backward too, and it can be differentiated once.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs: which of their sizes are open.
        mode: Only None is accepted.
        options: ``{"compiler": backend}``, a backend of ``funcaot.compile``; Inductor by default.

    Returns:
        The compiled graph.

    Raises:
        FuncaotError: For a mode or an option that there isn't.

    Example:
        >>> import torch, funcaot
        >>> f = torch.compile(lambda x: x.sin(), backend="funcaot")  # doctest: +SKIP
    """
    if mode is not None:
        raise FuncaotError(
            "torch.compile was given a mode for the backend 'funcaot', which has none.",
            expected="mode=None",
            got=f"mode={mode!r}",
            remedy="leave it out.",
        )
    unknown = sorted(set(options or ()) - set(_OPTIONS))
    if unknown:
        raise FuncaotError(
            "torch.compile was given options that the backend 'funcaot' doesn't know.",
            expected=f"options among {list(_OPTIONS)}",
            got=", ".join(unknown),
            remedy="leave them out.",
        )
    # Dynamo reads its own graph again.
    gm = fx.GraphModule(gm, copy.deepcopy(gm.graph), type(gm).__name__)
    _save_as_functions_do(gm)
    positions, opened = _without_sizes(gm)
    gm.recompile()
    compiled = compile_function(
        gm.forward,
        backend=(options or {}).get("compiler", "inductor"),
        # Dynamo has decided which sizes may change.
        dynamic=None if any(opened) else False,
    )
    compiled.open_dimensions(opened)
    return DynamoGraph(compiled, positions)


def add_to_accelerate() -> None:
    """Let Accelerate, and so transformers' ``Trainer``, take the name of this backend.

    Accelerate hands a model that it has wrapped to ``torch.compile``, and takes the backends of
    its own list only. After this call ``Accelerator(dynamo_backend="funcaot")`` and
    ``TrainingArguments(torch_compile_backend="funcaot")`` are taken, in this process.

    Raises:
        ModuleNotFoundError: Accelerate isn't installed.

    Example:
        >>> from funcaot.dynamo import add_to_accelerate
        >>> add_to_accelerate()  # doctest: +SKIP
        >>> accelerator = Accelerator(dynamo_backend="funcaot")  # doctest: +SKIP
    """
    names: Any = importlib.import_module("accelerate.utils").DynamoBackend
    if "FUNCAOT" not in names._value2member_map_:
        added = str.__new__(names, "FUNCAOT")
        added._name_ = added._value_ = "FUNCAOT"
        names._value2member_map_["FUNCAOT"] = added


class DynamoGraph:
    """What Dynamo calls for a graph.

    Attributes:
        funcaot_compiled: The compiled graph; `funcaot.report` finds it here.
    """

    def __init__(self, compiled: CompiledFunction, positions: tuple[int, ...] | None) -> None:
        """A graph that takes the arguments at these positions, or all of them."""
        self.funcaot_compiled = compiled
        self._positions = positions

    def __call__(self, *args: Any) -> Any:
        """Call the graph with Dynamo's arguments."""
        if self._positions is not None:
            args = tuple([args[position] for position in self._positions])
        return self.funcaot_compiled(*args)


def _without_sizes(gm: fx.GraphModule) -> tuple[tuple[int, ...] | None, list[frozenset[int]]]:
    """Let a graph read sizes off its tensors instead of taking them as numbers.

    Returns:
        The positions of the arguments that it still takes, None for all of them; and for each of
        these the dimensions whose sizes are open.
    """
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value") for node in places]
    shown: dict[Any, tuple[fx.Node, int]] = {}
    for node, value in zip(places, values, strict=True):
        for dim, size in enumerate(value.shape if _is_strided(value) else ()):
            if isinstance(size, torch.SymInt):
                shown.setdefault(size.node.expr, (node, dim))
    kept, opened = [], []
    body = next(node for node in gm.graph.nodes if node.op != "placeholder")
    for position, (node, value) in enumerate(zip(places, values, strict=True)):
        if isinstance(value, torch.SymInt) and value.node.expr in shown:
            if node.users:
                with gm.graph.inserting_before(body):
                    node.replace_all_uses_with(gm.graph.call_method("size", shown[value.node.expr]))
            gm.graph.erase_node(node)
            continue
        kept.append(position)
        sizes = value.shape if _is_strided(value) else ()
        opened.append(frozenset(d for d, s in enumerate(sizes) if isinstance(s, torch.SymInt)))
    return (None if len(kept) == len(places) else tuple(kept)), opened


def _is_strided(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _save_as_functions_do(gm: fx.GraphModule) -> None:
    """Put Functions of ours where Dynamo traced one, in whose stead nothing is saved."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not is_traced_function(node):
            continue
        forward, backward = (getattr(gm, str(item.target)) for item in node.args[:2])
        function = _traced_function(forward, backward, node.kwargs)
        with gm.graph.inserting_before(node):
            call = gm.graph.call_function(function, node.args[2:])
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        gm.graph.erase_node(node)


class _OnlyOnce(torch.autograd.Function):
    """Values as they are, without a derivative with respect to what they were computed from."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedError(
            "torch.compile traced the backward of an autograd.Function with grad mode off, since "
            "the Function can't be a single call in its graph: an argument is an object, or its "
            "forward doesn't run on fake tensors. So it has no second derivative.",
            remedy="give the Function tensors and numbers only, or use funcaot.compile instead of "
            "torch.compile.",
        )


def _traced_function(
    forward_graph: fx.GraphModule, backward_graph: fx.GraphModule, notes: dict[str, Any]
) -> Callable[..., Any]:
    """The call of a Function of what Dynamo traced: results, what is kept, and gradients."""
    checked = frozenset(notes.get("saved_for_backward_idx", ()))

    class Traced(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output, kept = forward_graph(*args)
            outputs = output if isinstance(output, tuple | list) else (output,)
            for name, mark in (
                ("dirty_idx", ctx.mark_dirty),
                ("non_differentiable_idx", ctx.mark_non_differentiable),
            ):
                if notes.get(name):
                    mark(*(outputs[index] for index in notes[name]))
            ctx.save_for_backward(*(value for i, value in enumerate(kept) if i in checked))
            ctx.kept = tuple(None if i in checked else value for i, value in enumerate(kept))
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[override]
            saved = iter(ctx.saved_tensors)
            kept = [next(saved) if i in checked else v for i, v in enumerate(ctx.kept)]
            result = backward_graph(*gradients, *kept)
            found = list(result) if isinstance(result, tuple | list) else [result]
            if not torch.is_grad_enabled():
                return tuple(found)
            values = [value for value in found if isinstance(value, torch.Tensor)]
            given = [v for v in (*gradients, *kept) if isinstance(v, torch.Tensor)]
            values = iter(_OnlyOnce.apply(len(values), *values, *given))
            return tuple(next(values) if isinstance(v, torch.Tensor) else v for v in found)

    def apply_traced(*args: Any) -> Any:
        return Traced.apply(*args)

    return apply_traced


keep_functions_whole(dynamo_backend)
