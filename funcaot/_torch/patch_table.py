"""Everything of torch that is changed while it is used: the table that ``patches`` reads."""

from __future__ import annotations

from funcaot._torch.inductor_patches import OF_INDUCTOR
from funcaot._torch.patch import Patch, Target

__all__ = ["PATCHES"]

PATCHES: tuple[Patch, ...] = (
    *OF_INDUCTOR,
    Patch(
        "transform calls",
        "funcaot/_torch/dynamo/transform_calls.py",
        (
            Target(
                "torch._functorch.vmap:vmap_impl",
                ("func", "in_dims", "out_dims", "randomness", "chunk_size", "args", "kwargs"),
            ),
            Target(
                "torch._functorch.eager_transforms:grad_impl",
                ("func", "argnums", "has_aux", "args", "kwargs"),
            ),
            Target(
                "torch._functorch.eager_transforms:grad_and_value_impl",
                ("func", "argnums", "has_aux", "args", "kwargs"),
            ),
        ),
        "torch.func.grad or vmap of a compiled function runs it level by level.",
        "a compiled function under transforms is slower",
        "tests/aot/runtime/test_transforms_outside.py",
        for_time=True,
    ),
    Patch(
        "printing",
        "funcaot/_torch/tensors/printing.py",
        (
            Target("torch._tensor_str:_str"),
            Target("torch._subclasses.functional_tensor:FunctionalTensor", has=("__repr__",)),
        ),
        "Printing a symbolic tensor under forward mode breaks the dispatcher's state; elsewhere it "
        "shows a class that the user doesn't know.",
        "a capture under forward mode may fail where torch prints a tensor in an error",
        "tests/aot/segment/test_forward_mode.py",
    ),
    Patch(
        "reads",
        "funcaot/_torch/tensors/reads.py",
        (Target("torch._subclasses.functional_tensor:FunctionalTensor", has=("tolist",)),),
        "``x.tolist()`` in a capture reads numbers one by one, and ``data_ptr()`` fails in hooks.",
        "each list of whole numbers has a program of its own; addresses are refused in hooks",
        "tests/aot/tape/known/test_lists_of_numbers.py",
    ),
    Patch(
        "dense",
        "funcaot/_torch/tensors/reads.py",
        (Target("torch._subclasses.functional_tensor:FunctionalTensor", has=("to_dense",)),),
        "``to_dense()`` of a sparse tensor in a capture isn't recorded by autograd.",
        "nothing is compiled",
        "tests/aot/tape/test_sparse.py",
    ),
    Patch(
        "texts",
        "funcaot/_torch/tensors/sizes/texts.py",
        (
            Target("torch:SymInt", has=("__repr__",)),
            Target("torch:SymFloat", has=("__repr__",)),
            Target("torch:SymBool", has=("__repr__",)),
        ),
        "A text that a function makes of an open size has the name of a symbol in it.",
        "no size stays open",
        "tests/_torch/test_texts.py",
    ),
    Patch(
        "lookups",
        "funcaot/_torch/tracing/attributes.py",
        (Target("torch._subclasses.functional_tensor:FunctionalTensor"),),
        "An attribute that a tensor gets later, and that a function looked for, isn't noticed.",
        "nothing is compiled",
        "tests/aot/capture/test_attributes.py",
    ),
    Patch(
        "classes",
        "funcaot/_torch/tracing/seen_classes.py",
        (
            Target("torch._subclasses.functional_tensor:FunctionalTensor"),
            Target("torch._subclasses.fake_tensor:FakeTensor"),
        ),
        "A function that asks for the class of a tensor is told that of a capture's tensors.",
        "nothing is compiled",
        "tests/aot/capture/test_seen_classes.py",
    ),
    Patch(
        "own classes",
        "funcaot/_torch/tracing/own_classes.py",
        (
            Target("torch:Tensor.as_subclass"),
            Target("torch:Tensor._make_subclass"),
            Target("torch._C:DisableTorchFunction"),
            Target("torch._subclasses.functional_tensor:FunctionalTensor"),
        ),
        "A tensor of a class of the user's can't be made of one of a capture.",
        "nothing is compiled",
        "tests/aot/subclasses/own_classes/test_classes.py::test_as_in_eager",
    ),
    Patch(
        "made wrappers",
        "funcaot/_torch/levels/made_wrappers.py",
        (Target("torch:Tensor._make_wrapper_subclass"),),
        "A tensor that wraps others can't be made inside, around tensors that are closed over.",
        "such a call runs without being compiled, or is refused",
        "tests/aot/subclasses/test_made_inside.py",
    ),
    Patch(
        "derivatives",
        "funcaot/derivatives/kernels.py",
        (Target("torch.library:Library", has=("impl",)),),
        "Kernels such as attention's can't be differentiated twice.",
        "what torch can't differentiate has no derivative here either",
        "tests/derivatives/test_rules.py",
    ),
    Patch(
        "zero tangents",
        "funcaot/_torch/autograd/zero_tangents.py",
        (Target("torch.library:Library", has=("impl",)),),
        "Zeros that stand for missing tangents are added with sizes as numbers.",
        "most functions in forward mode leave no size open",
        "tests/exported/test_open_sizes.py",
    ),
    Patch(
        "open batches",
        "funcaot/_torch/autograd/open_batches.py",
        (Target("torch.library:Library", has=("impl",)),),
        "Some ops under vmap take sizes as numbers.",
        "a Hessian of what they compute leaves no size open",
        "tests/exported/test_programs.py",
    ),
    Patch(
        "scripts",
        "funcaot/_torch/tracing/torchscript.py",
        (Target("torch.jit:ScriptFunction", has=("__call__",)), Target("torch._C:ScriptMethod")),
        "In TorchScript's interpreter, tensors that a module holds are out of sight.",
        "scripted and traced code is refused inside of a compiled function",
        "tests/_torch/test_torchscript.py",
    ),
    Patch(
        "captured gradients",
        "funcaot/_torch/dynamo/captured.py",
        (
            Target("torch.autograd.variable:ImperativeEngine", has=("run_backward",)),
            Target("torch.autograd.variable:Variable", has=("_execution_engine",)),
        ),
        "Nobody tells a node which gradients ``torch.autograd.grad`` takes out of the engine.",
        "backwards of functions that return what other results depend on take more programs",
        "tests/aot/calls/test_own_nodes.py::test_without_the_patch",
        for_time=True,
    ),
    Patch(
        "node hooks",
        "funcaot/_torch/autograd/node_hooks.py",
        (
            Target("torch.autograd.graph:node_creation_hook", has=("__enter__", "__exit__")),
            Target("torch._C._autograd:_push_node_creation_hook"),
            Target("torch._C._autograd:_pop_node_creation_hook"),
        ),
        "A hook around a call is called for each node that autograd makes in a capture.",
        "what such a hook registers on nodes of a capture is a part of later calls",
        "tests/aot/segment/test_node_creation_hooks.py",
        since="2.15",
    ),
    Patch(
        "entering",
        "funcaot/_torch/levels/entering.py",
        (
            Target("torch._functorch.eager_transforms:_wrap_for_grad"),
            Target("torch._functorch.vmap:_add_batch_dim"),
        ),
        "A transform inside of a compiled function wraps a closed-over tensor before it is seen.",
        "such a transform is refused",
        "tests/aot/capture/test_entering.py",
    ),
    Patch(
        "linearizing",
        "funcaot/_torch/levels/linearizing.py",
        (
            Target("torch._functorch.eager_transforms:lazy_dynamo_disallow", ("func",)),
            Target("torch._functorch.eager_transforms:linearize", ("func", "primals")),
        ),
        "torch.func.linearize traces a graph, whose constants are tensors of the capture.",
        "linearize fails inside of a compiled function",
        "tests/aot/capture/functions/test_linearize.py",
    ),
    Patch(
        "flex attention",
        "funcaot/_torch/levels/flex_attention.py",
        (Target("torch.nn.attention.flex_attention:_validate_device", ("query", "key", "value")),),
        "On the CPU, flex_attention refuses tensors that require grad.",
        "a compiled function refuses them too",
        "tests/derivatives/test_flex_attention.py",
    ),
    Patch(
        "uncompiled flex attention",
        "funcaot/_torch/levels/flex_attention.py",
        (
            Target(
                "torch.nn.attention.flex_attention:_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
            ),
            Target("torch._higher_order_ops.flex_attention:FlexAttentionHOP.__call__"),
        ),
        "flex_attention compiles itself, and its operator has a gradient of the first order.",
        "inside of install, flex_attention has the derivatives that torch has",
        "tests/derivatives/levels/test_uncompiled_flex_attention.py",
    ),
    Patch(
        "containers of operands",
        "funcaot/_torch/tracing/control_flow.py",
        (
            Target("torch._higher_order_ops.cond:validate_subgraph_args_types", ("lifted_args",)),
            Target("torch._higher_order_ops.cond:CondOp.__call__"),
        ),
        "The operator of torch.cond takes tensors alone: torch's compiler takes containers apart.",
        "a call with containers among the operands of torch.cond runs without being compiled",
        "tests/aot/capture/test_control_flow.py",
    ),
    Patch(
        "mathematics",
        "funcaot/_torch/tensors/sizes/functions_of_math.py",
        (Target("math:sqrt"),),
        "Python's math reads numbers that a capture leaves open.",
        "a number that math is given has a program for each value",
        "tests/aot/state/test_open_settings.py",
    ),
    Patch(
        "seeding",
        "funcaot/_torch/tensors/seeding.py",
        (Target("torch:manual_seed"), Target("torch:seed"), Target("torch.random:manual_seed")),
        "Seeding inside a compiled function would happen once.",
        "nothing is compiled",
        "tests/docs/test_limits.py",
    ),
    Patch(
        "generators",
        "funcaot/_torch/tensors/random/made_generators.py",
        (Target("torch:Generator", has=("manual_seed", "get_state", "set_state")),),
        "A random generator that is made inside a compiled function would be made once.",
        "nothing is compiled",
        "tests/aot/tape/test_made_generators.py",
    ),
    Patch(
        "general hooks",
        "funcaot/_torch/calls/general_hooks.py",
        (
            Target(
                "torch.utils.hooks:RemovableHandle.__init__", ("self", "hooks_dict", "extra_dict")
            ),
            Target("torch.nn.modules.module:_global_forward_hooks"),
            Target("torch.optim.optimizer:_global_optimizer_pre_hooks"),
        ),
        "A hook for every module that a function leaves would be there once for each capture.",
        "nothing is compiled",
        "tests/_torch/test_general_hooks.py",
    ),
    Patch(
        "checkpoints",
        "funcaot/_torch/autograd/checkpoint.py",
        (
            Target("torch.utils.checkpoint:CheckpointFunction", has=("apply",)),
            Target("torch.utils.checkpoint:_checkpoint_without_reentrant_generator"),
        ),
        "Hooks of a checkpoint would run its function again while it is captured.",
        "nothing is compiled",
        "tests/aot/segment/test_partition.py::test_checkpointed_regions_keep_their_inputs",
    ),
    Patch(
        "whole backwards",
        "funcaot/_torch/autograd/whole_backward.py",
        (
            Target("torch.autograd:_is_checkpoint_valid", ()),
            Target("torch.autograd.graph:_engine_run_backward", ("t_outputs", "args", "kwargs")),
        ),
        "A Function that fills .grad asks in its backward whether backward() was called, and would "
        "be told that it wasn't, since autograd.grad traces it.",
        "such a Function raises its own error when its backward is traced",
        "tests/aot/segment/test_whole_backward.py",
    ),
    Patch(
        "distributed tensors",
        "funcaot/_torch/distributed/again.py",
        (
            Target(
                "torch.distributed.tensor._api:_FromTorchTensor.backward", ("ctx", "grad_output")
            ),
            Target("torch.distributed.tensor._api:_normalize_placements_for_grad", ("placements",)),
            Target("torch.distributed.tensor:DTensor", has=("redistribute", "to_local")),
            Target(
                "torch.distributed.tensor.placement_types:_hint_proves_even_shard",
                ("size", "num_chunks"),
            ),
            Target(
                "torch.distributed.tensor._sharding_prop:_select_min_cost_strategy",
                ("strategy", "op_schema"),
            ),
            Target(
                "torch.distributed.tensor._decompositions:DecompShardingStrategy.propagate_strategy"
            ),
            Target("torch.distributed.tensor._collective_utils:spec_to_bytes", ("spec",)),
            Target("torch.distributed.device_mesh:DeviceMesh._create_sub_mesh"),
            Target("torch.distributed.device_mesh:DeviceMesh.mesh"),
            Target(
                "torch.distributed.tensor._dispatch:"
                "OpDispatcher._propagate_op_sharding_dispatch_slow_path"
            ),
            Target(
                "torch.distributed.tensor.placement_types:_StridedShard.local_shard_size_and_offset"
            ),
        ),
        "Second derivatives under tensor parallelism lack a part, without a word; parts of other "
        "sizes aren't padded; where sizes are open, other placements than eager's may be chosen; "
        "what is cut in strides is looked at in each call; a part of a mesh can't be taken, nor "
        "its ranks.",
        "nothing is compiled once torch.distributed.tensor was imported",
        "tests/distributed/test_tensor_parallel.py",
    ),
    Patch(
        "places among ranks",
        "funcaot/_torch/distributed/asked.py",
        (
            Target("torch.distributed.distributed_c10d:_World.default_pg"),
            Target("torch.distributed.distributed_c10d:ProcessGroup.rank"),
            Target("torch.distributed.device_mesh:DeviceMesh._compute_coordinate_on_dim"),
        ),
        "A program that asked for its rank would run on another rank that finds it in a file.",
        "nothing is compiled",
        "tests/aot/saved/test_places_among_ranks.py",
    ),
    Patch(
        "collectives of one rank",
        "funcaot/_torch/distributed/alone.py",
        (
            Target("torch.library:Library.impl"),
            Target("torch.library:Library._destroy"),
            Target("torch.library:get_kernel"),
        ),
        "Warming up a function with collectives waits for ranks that don't warm it up.",
        "warm_up is refused where there is a process group",
        "tests/distributed/saved/test_modules.py",
    ),
    Patch(
        "numbers of works",
        "funcaot/_torch/distributed/fake_works.py",
        (Target("torch.distributed._meta_registrations:generate_unique_id", ()),),
        "Torch draws a random number for each collective on tensors without data.",
        "a Function whose forward calls a collective is refused as one that draws",
        "tests/distributed/collectives/test_functions.py",
    ),
    Patch(
        "stepping aside",
        "funcaot/_torch/dynamo/dynamo.py",
        (
            Target("torch._dynamo.eval_frame:_stance"),
            Target("torch._dynamo.eval_frame:_set_stance", ("stance",)),
            Target("torch._dynamo.eval_frame:DynamoStance"),
        ),
        "What torch.compile compiled would compile again inside a capture.",
        "nothing is compiled once torch.compile was used",
        "tests/test_dynamo.py::test_what_torch_compile_compiled_is_looked_into",
    ),
    Patch(
        "apply in Python",
        "funcaot/_torch/calls/python_apply.py",
        (Target("torch.autograd:Function.apply", ("args", "kwargs")),),
        "Calls of a Function aren't seen, so its rules are lost.",
        "nothing is compiled, and funcaot.install is refused",
        "tests/test_operator.py",
        versions=("2.13", "2.13"),
        before="2.14",
    ),
    Patch(
        "apply in C++",
        "funcaot/_torch/calls/native_apply.py",
        (
            Target("torch.autograd.function:_bind_default_args"),
            Target("torch.autograd.function:_call_custom_function_call"),
        ),
        "Calls of a Function aren't seen, so its rules are lost.",
        "nothing is compiled, and funcaot.install is refused",
        "tests/test_operator.py",
        versions=("2.14", "2.15"),
        since="2.14",
    ),
)
