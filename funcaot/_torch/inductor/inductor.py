"""Private names of Inductor: decompositions, graph passes and the inner compiler."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from funcaot import config
from funcaot._torch.dynamo.compile_lock import compiling, replaced_here
from funcaot._torch.inductor import (
    casts,
    special_values,
)
from funcaot._torch.inductor.decompositions import corrected
from funcaot._torch.inductor.mended import code_mended, prepare
from funcaot._torch.inductor.product_calls import taken_over
from funcaot._torch.patches import applied, without_those_for_time
from funcaot._torch.tensors.seeding import generators_among
from funcaot._torch.tensors.trace_log import artifact, is_tracing
from funcaot.errors import PatchWarning

_LOG = logging.getLogger(__name__)
_CODE = logging.getLogger("funcaot.code")

# In an output node's meta: the positions of outputs whose strides Inductor chooses.
FREE_LAYOUTS = "free_layouts"


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table of decompositions that Inductor's lowerings expect."""
    with compiling():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # The decompositions use the lowerings' tables without importing them.
            import torch._inductor.lowering  # noqa: F401
            from torch._inductor.decomposition import select_decomp_table

        with eager_random_numbers():
            return corrected(select_decomp_table())


@contextlib.contextmanager
def _fake(fake_mode: Any) -> Iterator[None]:
    """Work in the graph's fake mode: ops without a kernel and small constants of patterns are fake.

    The on-disk cache asks for the mode's symbolic sizes, also where there are none.
    """
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if fake_mode is None:
        yield
        return
    static = fake_mode.shape_env is None
    if static:
        fake_mode.shape_env = ShapeEnv(
            allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )
    try:
        with fake_mode, V.set_fake_mode(fake_mode):
            yield
    finally:
        if static:
            fake_mode.shape_env = None


@contextlib.contextmanager
def eager_random_numbers(module: fx.GraphModule | None = None) -> Iterator[None]:
    """Let random ops be eager's kernels, if the configuration or a generator asks for that.

    Args:
        module: The graph. Inductor's caches would give one that holds a generator a copy of it,
            so they aren't used for such a graph.
    """
    import torch._inductor.config as inductor_config

    given = module is not None and bool(generators_among(vars(module).values()))
    options: dict[str, bool] = {"fallback_random": True} if config.get().fallback_random else {}
    if given:
        options.update(fx_graph_cache=False, fx_graph_remote_cache=False)
    if not options:
        yield
        return
    with inductor_config.patch(options), applied("eager bernoulli", _pure_bernoulli, None):
        yield


@contextlib.contextmanager
def _pure_bernoulli() -> Iterator[None]:
    """Let ``bernoulli`` be a kernel that returns its numbers.

    Inductor fills memory in place instead, and may fuse what reads the numbers with what comes
    before they are drawn. It also knows no generator there. Of a tensor of probabilities it draws
    in float32, whatever they are (``decompositions``). For other threads the numbers are the same
    either way.
    """
    from torch._inductor.lowering import fallback_handler, lowerings

    packet = torch.ops.aten.bernoulli
    usual = {op: lowerings.get(op) for op in (packet.p, packet.default)}
    lowerings.update({op: fallback_handler(op, add_to_fallback_set=False) for op in usual})
    try:
        yield
    finally:
        for op, lowering in usual.items():
            if lowering is None:
                lowerings.pop(op, None)
            else:
                lowerings[op] = lowering


def compile_graph(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, is_backward: bool, is_inference: bool
) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile a functional aten graph.

    Args:
        module: Decomposed graph; it is changed.
        example_inputs: Fake tensors, one per placeholder.
        is_backward: Whether the graph is a backward.
        is_inference: Whether no backward will follow.

    Returns:
        A callable on a list of tensors, which it empties. If all sizes are known, it trusts the
        tensors to have the sizes and strides of the examples.
    """
    spare = _copied(module)
    purpose = (is_backward, is_inference)
    try:
        return _compiled(module, example_inputs, purpose)
    except Exception as error:  # noqa: BLE001  (it is raised again if it isn't the cache's)
        reason = error
    with compiling(), _second_cache() as path:
        try:
            found = _compiled(_copied(spare), example_inputs, purpose)
        except Exception:  # noqa: BLE001  (then it wasn't the cache)
            return _without_patches(spare, example_inputs, purpose, reason)
    _LOG.warning(
        "Something in Inductor's cache on disk may be damaged; what failed was built anew in %s. "
        "To be rid of the failure, delete the cache. It was: %s",
        path,
        reason,
    )
    return found


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph; compiling one changes it."""
    return fx.GraphModule(module, copy.deepcopy(module.graph))


def _without_patches(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    purpose: tuple[bool, bool],
    reason: Exception,
) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile without the changes to Inductor that only save time; else raise what came first."""
    with without_those_for_time():
        try:
            found = _compiled(module, example_inputs, purpose)
        except Exception:  # noqa: BLE001  (then it wasn't the patches)
            raise reason from None
    warnings.warn(
        f"What funcaot changes in Inductor fails with this torch, {torch.__version__} "
        f"({type(reason).__name__}: {reason}). A graph was compiled without it, and is slower.",
        PatchWarning,
        stacklevel=2,
    )
    return found


@contextlib.contextmanager
def _second_cache() -> Iterator[str]:
    """Another folder for what Inductor builds, beside what is in the usual one."""
    from torch._inductor.runtime.runtime_utils import cache_dir
    from torch._inductor.utils import clear_caches

    name = "TORCHINDUCTOR_CACHE_DIR"
    before, path = os.environ.get(name), os.path.join(cache_dir(), "rebuilt")
    clear_caches()
    os.environ[name] = path
    try:
        yield path
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _compiled(
    module: fx.GraphModule, example_inputs: Sequence[Any], purpose: tuple[bool, bool]
) -> Callable[[list[Any]], Sequence[Any]]:
    from torch._guards import TracingContext, tracing

    is_backward, is_inference = purpose
    with compiling(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner

    fake_mode = example_fake_mode(example_inputs, module)
    with (
        compiling(),
        torch.no_grad(),
        tracing(TracingContext(fake_mode)),
        _fake(fake_mode),
        eager_random_numbers(module),
        applied("casts", casts.as_written, None),
        warnings.catch_warnings(),
    ):
        # Inductor uses parts of torch that are deprecated; its user can't do anything about it.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        prepare(module)
        with special_values.exact_passes():
            module = _recursive_joint_graph_passes(module)
        output = next(iter(reversed(module.graph.nodes)))
        # The strides of an output are part of the contract, unless it comes back to Inductor.
        hidden = output.meta.get(FREE_LAYOUTS, frozenset())
        shown = [index for index in range(len(output.args[0])) if index not in hidden]
        output.meta["user_visible_output_idxs"] = shown
        tag = "funcaot" + "".join(f" {index}" for index in sorted(hidden))
        tag += " bernoulli" if config.get().fallback_random else ""
        tag += special_values.tag()
        unchecked = functools.partial(_without_input_checks, example_inputs)
        with (
            applied("products", taken_over, "") as products,
            applied("inputs checked once", unchecked, "") as sizes,
            code_mended() as mended,
            _tagged(tag + mended + products + sizes),
            applied("kernels together", _kernels_together, None),
            applied("kernels early", _kernels_early, None),
        ):
            compiled = compile_fx_inner(
                module, list(example_inputs), is_backward=is_backward, is_inference=is_inference
            )
    # What the artifact's own __call__ calls, after checks of its own.
    _show_code(compiled)
    return getattr(compiled, "current_callable", None) or compiled  # type: ignore[return-value]


def _kernels_together() -> contextlib.AbstractContextManager[None]:
    from funcaot._torch.inductor import kernels  # It subclasses what the patch has looked at.

    return kernels.compiled_together()


def _kernels_early() -> contextlib.AbstractContextManager[None]:
    from funcaot._torch.inductor import kernels

    return kernels.started_early()


@contextlib.contextmanager
def _tagged(tag: str) -> Iterator[None]:
    """Tell Inductor's caches that an artifact isn't the one that torch.compile would make."""
    options: Any = torch.compiler.config
    with options.patch(cache_key_tag=f"{options.cache_key_tag}{tag}"):
        yield


@contextlib.contextmanager
def _without_input_checks(example_inputs: Sequence[Any]) -> Iterator[str]:
    """Leave out the comparison of each input's sizes, which costs more than a small kernel.

    Guards have compared them already. What Inductor checks in between stays.

    Yields:
        What tells such artifacts from others in Inductor's caches.
    """
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    static = all(
        type(number) is int
        for value in example_inputs
        if isinstance(value, torch.Tensor)
        for number in (*value.shape, *value.stride())
    )
    if not static:
        yield ""
        return
    with replaced_here(PythonWrapperCodegen, "codegen_input_size_asserts", lambda self: None):
        yield " unchecked"


def example_fake_mode(example_inputs: Sequence[Any], module: fx.GraphModule) -> Any:
    """The fake mode that a graph's values belong to."""
    from torch._guards import detect_fake_mode

    values = [node.meta.get("val") for node in module.graph.nodes]
    tensors = [value for value in [*example_inputs, *values] if isinstance(value, torch.Tensor)]
    return detect_fake_mode(tensors)


def _show_code(compiled: Any) -> None:
    """Log what Inductor wrote (``FUNCAOT_LOGS=code``)."""
    if _CODE.isEnabledFor(logging.DEBUG) or is_tracing():
        code = str(getattr(compiled, "source_code", ""))
        _CODE.debug("%s", code)
        artifact("code", code)
