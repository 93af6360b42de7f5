"""What is changed in Inductor while it is used: rows of ``patch_table``."""

from __future__ import annotations

from funcaot._torch.patch import Patch, Target

__all__ = ["OF_INDUCTOR"]

_INDUCTOR = "funcaot/_torch/inductor"
_NEEDED = "tests/_torch/test_patches.py::test_needed"
_OP_BY_OP = "graphs that it concerns run op by op"

OF_INDUCTOR: tuple[Patch, ...] = (
    Patch(
        "casts",
        f"{_INDUCTOR}/casts.py",
        (Target("torch._inductor.config:emulate_precision_casts"),),
        "Inductor takes a cast to a narrow dtype and back for nothing.",
        _OP_BY_OP,
        f"{_NEEDED}[casts]",
    ),
    Patch(
        "apart",
        f"{_INDUCTOR}/reinplacing.py",
        (
            Target("torch._inductor.fx_passes.reinplace:inplaceable_ops"),
            Target("torch._inductor.fx_passes.reinplace:inplaceable_foreach_ops"),
            Target(
                "torch._inductor.fx_passes.reinplace:InplaceableOp",
                takes=("inplace_op", "mutated_arg", "extra_check"),
            ),
            Target("torch._inductor.fx_passes.reinplace:get_node_storage", takes=("node",)),
            Target("torch.fx.passes.reinplace:_is_view_op", takes=("tgt",)),
            Target(
                "torch._inductor.scheduler:SchedulerNode.recompute_size_and_body",
                takes=("self", "extra_indexing_constraints", "recompute_sizes_body_func"),
            ),
        ),
        "An op that writes to part of a tensor works in memory that it reads; a result of a "
        "collective is read before it is there.",
        _OP_BY_OP,
        f"{_NEEDED}[apart]",
    ),
    Patch(
        "rigid kernels",
        f"{_INDUCTOR}/rigid_kernels.py",
        (
            Target("torch._inductor.lowering:_maybe_layout_constraints"),
            Target(
                "torch._inductor.lowering:constrain_to_fx_strides",
                takes=("fx_node", "args", "kwargs"),
            ),
        ),
        "Kernels of eager get operands in layouts that they misread.",
        _OP_BY_OP,
        "tests/backends/test_values_of_ops.py::test_maxima_of_pixels_in_any_layout",
    ),
    Patch(
        "stored apart",
        f"{_INDUCTOR}/casts.py",
        (
            Target(
                "torch._inductor.codegen.cpp:CppVecKernel.store_reduction",
                takes=("self", "name", "index", "value"),
            ),
            Target("torch._inductor.codegen.cpp:DeferredLine", takes=("name", "line")),
        ),
        "C++ with two results that cast the same sum to half precision doesn't compile.",
        _OP_BY_OP,
        "tests/_torch/test_scalars.py::test_a_sum_that_two_results_cast",
    ),
    Patch(
        "quotients",
        f"{_INDUCTOR}/scalars.py",
        (
            Target(
                "torch._inductor.codegen.triton:TritonPrinter._print_IntTrueDiv",
                takes=("self", "expr"),
            ),
            Target("torch._inductor.codegen.triton:TritonPrinter._get_scalar_float_type"),
        ),
        "On GPUs, quotients of open sizes have the precision of float32 in float64's programs.",
        _OP_BY_OP,
        "tests/_torch/test_scalars.py::test_quotients_of_sizes_on_gpus",
    ),
    Patch(
        "exact kernels",
        f"{_INDUCTOR}/special_values.py",
        (
            Target("torch._inductor.lowering:lowerings"),
            Target(
                "torch._inductor.lowering:fallback_handler", takes=("kernel", "add_to_fallback_set")
            ),
        ),
        "Grid samplers and pools of NaN, or in unusual layouts, have wrong values and indices.",
        _OP_BY_OP,
        "tests/aot/lowering/test_special_values.py",
    ),
    Patch(
        "exact vectors",
        f"{_INDUCTOR}/special_values.py",
        (Target("torch._inductor.codegen.cpp:CppVecOverrides", has=("expm1", "atanh", "acosh")),),
        "Small numbers and signs of zero are lost in expm1, atanh and acosh of vectors.",
        _OP_BY_OP,
        f"{_NEEDED}[exact vectors]",
    ),
    Patch(
        "exact zeros",
        f"{_INDUCTOR}/special_values.py",
        (
            Target(
                "torch._inductor.fx_passes.joint_graph:remove_no_ops",
                takes=("gm", "zeros", "ones"),
            ),
        ),
        "With config.exact_special_values, adding a constant zero keeps the sign of zero.",
        f"with that option, {_OP_BY_OP}",
        f"{_NEEDED}[exact zeros]",
    ),
    Patch(
        "eager bernoulli",
        f"{_INDUCTOR}/inductor.py",
        (
            Target("torch._inductor.config:fallback_random"),
            Target("torch._inductor.lowering:lowerings"),
            Target(
                "torch._inductor.lowering:fallback_handler", takes=("kernel", "add_to_fallback_set")
            ),
        ),
        "With config.fallback_random, numbers are drawn in another order than they are read; "
        "``bernoulli`` with a generator fails.",
        f"with that option, {_OP_BY_OP}",
        "tests/aot/tape/test_fallback_random.py",
    ),
    Patch(
        "loops",
        f"{_INDUCTOR}/loops/threads.py",
        (
            Target("torch._inductor.codegen.cpp:CppScheduling.codegen_node", ("self", "node")),
            Target("torch._inductor.codegen.cpp:LoopNest.max_parallel_depth", ("self",)),
            Target("torch._inductor.ir:Scatter"),
            Target("torch._inductor.config:cpp.threads"),
        ),
        "Small loops are slower with two threads than with one.",
        "such loops are as slow as torch.compile's",
        "tests/_torch/loops/test_threads.py",
        for_time=True,
    ),
    Patch(
        "short rows",
        f"{_INDUCTOR}/loops/short_rows.py",
        (
            Target(
                "torch._inductor.codegen.cpp:TilingSelect.select_tiling",
                ("self", "fn_list", "var_sizes_list"),
            ),
            Target("torch._inductor.codegen.cpp_utils:_get_loop_body", ("fn_list",)),
        ),
        "Rows of float64 that are shorter than two vectors are computed number by number.",
        "such rows are as slow as torch.compile's",
        "tests/_torch/loops/test_short_rows.py",
        for_time=True,
    ),
    Patch(
        "indices",
        f"{_INDUCTOR}/loops/indices.py",
        (
            Target(
                "torch._inductor.codegen.cpp:CppVecKernel._load_or_store_non_contiguous",
                ("self", "var", "index", "dtype", "buffer", "store_value", "accu_store"),
            ),
        ),
        "Vectors of indices are copied number by number before they are checked.",
        "reading by index is as slow as torch.compile's",
        "tests/_torch/loops/test_indices.py",
        for_time=True,
    ),
    Patch(
        "dtype rules",
        f"{_INDUCTOR}/loops/dtypes.py",
        (
            Target(
                "torch._inductor.dtype_propagation:DtypePropagationOpsHandler.__init__",
                takes=("self",),
            ),
        ),
        "The rules for dtypes of 300 ops are put together again for each op of each loop.",
        "large programs take longer to compile",
        "tests/_torch/loops/test_dtypes.py",
        for_time=True,
    ),
    Patch(
        "strides",
        f"{_INDUCTOR}/loops/strides.py",
        (
            Target("torch._inductor.codegen.cpp:stride_at_vec_range"),
            Target(
                "torch._inductor.sizevars:stride_at_vec_range.__wrapped__",
                ("index", "var", "vec_length"),
            ),
        ),
        "Strides of plain indices are found by simplifying expressions.",
        "large programs take longer to compile",
        "tests/_torch/loops/test_strides.py",
        for_time=True,
    ),
    Patch(
        "joined indices",
        f"{_INDUCTOR}/loops/joined.py",
        (
            Target("torch._inductor.sizevars:join_dimensions", ("expr",)),
            Target("torch._inductor.sizevars:_join_dimensions_cached.__wrapped__", ("expr",)),
            Target(
                "torch._inductor.sizevars:SizeVarAllocator._simplify_with_ranges",
                ("self", "expr", "var_ranges"),
            ),
            Target("torch._inductor.sizevars:SizeVarAllocator.simplify", ("self", "expr")),
            Target("torch._inductor.sizevars:ModularIndexing"),
            Target("torch._inductor.sizevars:FloorDiv"),
        ),
        "Quotients and remainders that belong together are found by matching all pairs of terms; "
        "relations are written for indices without any.",
        "large programs take longer to compile",
        "tests/_torch/loops/test_joined.py",
        for_time=True,
    ),
    Patch(
        "empty ranges",
        f"{_INDUCTOR}/loops/empty_ranges.py",
        (
            Target("torch._inductor.scheduler:SchedulerNode.codegen", ("self", "index_vars")),
            Target(
                "torch._inductor.codegen.cpp:CppVecKernel.__init__",
                ("self", "args", "num_threads", "tiling_factor", "tiling_idx", "tail_size"),
            ),
            Target(
                "torch._inductor.codegen.cpp:CppTile2DKernel.__init__",
                (
                    *("self", "args", "num_threads", "tiling_factor", "tiling_indices"),
                    *("inner_tail_size", "outer_tail_size"),
                ),
            ),
            Target(
                "torch._inductor.codegen.cpp:CppKernel.codegen_conditions",
                ("self", "code", "prefix", "var"),
            ),
        ),
        "Bodies of loops that have no turn are written and thrown away.",
        "large programs take longer to compile",
        "tests/_torch/loops/test_empty_ranges.py",
        for_time=True,
    ),
    Patch(
        "symbols of partitions",
        f"{_INDUCTOR}/partitions.py",
        (
            Target(
                "torch._inductor.scheduler:Scheduler.get_graph_partition_symbol_inputs",
                ("self", "partition", "input_nodes"),
            ),
            Target("torch._inductor.sizevars:SizeVarAllocator"),
            Target("torch.fx.experimental.symbolic_shapes:ShapeEnv"),
        ),
        "Open sizes are searched for in all loops of a graph that has none.",
        "large programs take longer to compile",
        "tests/_torch/loops/test_partitions.py",
        for_time=True,
    ),
    Patch(
        "scalars",
        f"{_INDUCTOR}/scalars.py",
        (
            Target("torch._inductor.graph:GraphLowering.run_node", ("self", "n")),
            Target("torch._inductor.ir:Pointwise", has=("inner_fn_opcount", "get_reads")),
        ),
        "A number that every element needs is computed anew for each vector of elements.",
        "optimizer steps are slower",
        "tests/_torch/test_scalars.py",
        for_time=True,
    ),
    Patch(
        "products",
        f"{_INDUCTOR}/product_calls.py",
        (
            Target(
                "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_extern_kernel_out",
                ("self", "node"),
            ),
            Target("torch._inductor.ir:ReinterpretView"),
            Target("torch._inductor.ir:FixedLayout"),
            Target("torch._inductor.utils:parallel_num_threads"),
        ),
        "Products of small matrices wait for a library that doesn't know the processor.",
        "products are torch.mm's",
        "tests/_torch/test_products.py",
        for_time=True,
    ),
    Patch(
        "kernels together",
        f"{_INDUCTOR}/kernels/together.py",
        (
            Target(
                "torch._inductor.async_compile:AsyncCompile.cpp_pybinding",
                ("self", "argtypes", "source_code"),
            ),
            Target("torch._inductor.async_compile:AsyncCompile.wait", ("self", "scope")),
            Target(
                "torch._inductor.codecache:CppPythonBindingsCodeCache",
                has=("load_async", "_load_library_inner"),
            ),
        ),
        "Each kernel of a graph is a run of the C++ compiler.",
        "kernels compile one by one",
        "tests/backends/test_kernels.py",
        for_time=True,
    ),
    Patch(
        "kernels early",
        f"{_INDUCTOR}/kernels/early.py",
        (
            Target(
                "torch._inductor.codegen.wrapper:PythonWrapperCodegen.define_kernel",
                takes=(
                    "self",
                    "kernel_name",
                    "kernel_body",
                    "metadata",
                    "gpu",
                    "cpp_definition",
                ),
            ),
        ),
        "The C++ compiler waits until all kernels of a graph are written.",
        "it waits here too",
        "tests/backends/test_kernels.py::test_a_long_file_is_compiled_while_others_are_written",
        for_time=True,
    ),
    Patch(
        "inputs checked once",
        f"{_INDUCTOR}/inductor.py",
        (
            Target(
                "torch._inductor.codegen.wrapper:PythonWrapperCodegen.codegen_input_size_asserts",
                ("self",),
            ),
        ),
        "Sizes that guards have compared are compared again in each call.",
        "calls of small graphs cost microseconds more",
        "tests/_torch/test_patches.py::test_sizes_are_compared_twice_without_their_patch",
        for_time=True,
    ),
)
