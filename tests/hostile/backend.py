"""The hostile backend: Inductor's decompositions and passes, and whatever else a compiler may do.

Each graph goes through Inductor's own decompositions and graph passes and is then run node by node,
so that a test needs no C++ compiler. What Inductor would do in its later stages, and what another
compiler might do, is done to the results: see `Freedoms`. What a graph gets is drawn from its code,
so a graph is treated alike whenever it is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import fx

from funcaot._torch.inductor import inductor, reinplacing
from funcaot.backends.compiler import Compiler
from funcaot.backends.reinterpreted import with_dense_operands
from tests.hostile import merging
from tests.hostile.memory import Results
from tests.hostile.running import Plan, run_nodes

_LOCK = threading.RLock()


@dataclass(frozen=True)
class Freedoms:
    """What the backend does besides computing what the graph says.

    Attributes:
        passes: Inductor's graph passes run: no-ops go, patterns are replaced, ops are reinplaced.
        merges: Equal results become one object, and a result that equals an input is the input.
        layouts: What only a backward sees lies in memory in a drawn order, padded at times.
        packs: Results lie side by side in one storage, as Inductor's memory plans put them.
        poisons: Memory of the backend's own is filled with NaN before it is first written and
            when nobody needs it any more.
        views: Results of view ops are views for autograd too, as those of an interpreter are;
            compiled code makes tensors that autograd knows nothing of.
        seed: Other numbers draw other choices.
    """

    passes: bool = True
    merges: bool = True
    layouts: bool = True
    packs: bool = True
    poisons: bool = True
    views: bool = False
    seed: int = 0


def hostile(freedoms: Freedoms = Freedoms()) -> Compiler:
    """A compiler that uses these freedoms."""
    return Compiler(
        name="hostile",
        compile=functools.partial(_compile, freedoms),
        decompositions=_decompositions,
        accepts=_is_dense,
        checks_layouts=False,
        writes_inputs=True,
        chooses_layouts=True,
    )


def _is_dense(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_conj()
        and not value.is_neg()
    )


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    with _eager_random_numbers():
        return inductor.decompositions()


@contextlib.contextmanager
def _eager_random_numbers() -> Iterator[None]:
    """Leave random ops alone: nothing generates code for Inductor's own."""
    with _LOCK, warnings.catch_warnings():
        # Of deprecated parts of torch, and of what makes its kernels slow.
        warnings.simplefilter("ignore")
        import torch._inductor.config as inductor_config

        with inductor_config.patch(fallback_random=True):
            yield


def _compile(
    freedoms: Freedoms, module: fx.GraphModule, examples: Sequence[Any], kind: str
) -> Callable[[list[Any]], Sequence[Any]]:
    random = Random(zlib.crc32(module.code.encode()) + freedoms.seed)
    hidden = _output(module).meta.get(inductor.FREE_LAYOUTS, frozenset())
    strides = [
        value.stride() if isinstance(value := _value(node), torch.Tensor) else None
        for node in _output(module).args[0]  # type: ignore[union-attr]
    ]
    with torch.no_grad():
        if freedoms.merges:
            merging.merge(module, random)
        if freedoms.passes:
            module = with_dense_operands(module)
            module = _with_inductors_passes(module, examples, is_inference=kind == "inference")
    plan = Plan(module, poisons=freedoms.poisons)
    results = Results(module, strides, hidden, random, freedoms)

    unseen = torch.no_grad if freedoms.views else _below_autograd

    def run(inputs: list[Any]) -> Sequence[Any]:
        with unseen():
            return results.placed(*run_nodes(plan, inputs))

    return run


def _with_inductors_passes(
    module: fx.GraphModule, examples: Sequence[Any], *, is_inference: bool
) -> fx.GraphModule:
    """What Inductor does to a graph before it makes kernels of it."""
    fake_mode = inductor.example_fake_mode(examples, module)
    if fake_mode is None:
        return module
    with _eager_random_numbers():
        # Parts of torch that it imports are deprecated.
        from torch._guards import TracingContext, tracing
        from torch._inductor import compile_fx
        from torch._inductor.fx_passes.post_grad import view_to_reshape
        from torch._inductor.virtualized import V

        with tracing(TracingContext(fake_mode)), inductor._fake(fake_mode):
            module = compile_fx._recursive_joint_graph_passes(module)
            view_to_reshape(module)
            fake_mode = compile_fx.fake_tensor_prop(module, list(examples))
            with V.set_fake_mode(fake_mode), reinplacing.apart():
                compile_fx._recursive_post_grad_passes(module, is_inference=is_inference)
    return module


@contextlib.contextmanager
def _below_autograd() -> Iterator[None]:
    """Run ops as compiled code does: autograd sees no views and counts no versions."""
    views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(views):
        yield


def _output(module: fx.GraphModule) -> fx.Node:
    return next(iter(reversed(module.graph.nodes)))


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else node


COMPILER = hostile()
