"""Settings for every test: a thread a worker, the compile cache in build/, fixed seeds."""

import os
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

# Before torch is imported, and only where the caller has not chosen otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "inductor")
)
os.environ.setdefault("MPLBACKEND", "Agg")
# Artifacts are signed; tests leave no key in anybody's home.
os.environ.setdefault("FUNCAOT_ARTIFACT_KEY", "the key of the tests, which nobody else has")
# Every graph that a test compiles is proved to return nothing that shares memory.
os.environ.setdefault("FUNCAOT_CHECK_ALIASES", "1")

import pytest
import torch

# The usual linker takes as long as the compiler for a small kernel, since it reads all of torch.
if GOLD := shutil.which("ld.gold"):
    linker = Path(__file__).resolve().parents[1] / "build" / "linker" / "ld"
    linker.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        linker.symlink_to(GOLD)
    os.environ.setdefault("COMPILER_PATH", str(linker.parent))

# All tests run on the hostile backend, whichever they name (CONTRIBUTING.md).
HOSTILE = os.environ.get("FUNCAOT_TEST_BACKEND") == "hostile"

# Files whose tests run on the backends that they name and on the hostile one; there in which group.
ON_BOTH = {
    "test_aliases": "long",
    "test_backward_mutations": "long",
    "test_shared_memory": "long",
    "test_detached_writes": "long",
    "test_effects": "long",
    "test_effects_levels": "long",
    "test_effects_regressions": "long",
    "test_epilogue_plan": "fast",
    "test_orders": "long",
    "test_state": "long",
}


# Of these files, every n-th case of a test runs in its group; the others with `make test-long`.
# Those of `tests/distributed` become slow after this.
SAMPLED = {
    "fast": {
        "test_acting_ops": 2,
        "test_added_to": 4,
        "test_adjoints": 4,
        "test_alike": 14,
        "test_attention": 2,
        "test_attributes": 2,
        "test_attributes_of_containers": 3,
        "test_autocast_layers": 2,
        "test_autocast_regions": 3,
        "test_autograd_inside": 3,
        "test_backwards_that_close_over": 2,
        "test_batched_draws": 4,
        "test_batches_of_gradients": 2,
        "test_beside_wrappers": 2,
        "test_casts": 6,
        "test_classes": 10,
        "test_closures": 4,
        "test_combined": 4,
        "test_compiled_kernels": 2,
        "test_computed_names": 2,
        "test_constant_results": 2,
        "test_contract": 6,
        "test_control_flow": 2,
        "test_custom_ops": 2,
        "test_custom_vmap": 4,
        "test_det": 2,
        "test_dynamic": 4,
        "test_dynamo_backend": 4,
        "test_eager_arguments": 8,
        "test_eager_formulas": 3,
        "test_eager_strides": 2,
        "test_early": 4,
        "test_edits": 4,
        "test_effects": 12,
        "test_effects_levels": 4,
        "test_effects_regressions": 2,
        "test_empty": 4,
        "test_entering": 4,
        "test_every_optimizer": 16,
        "test_facts": 2,
        "test_fallback_random": 2,
        "test_fast_call": 2,
        "test_fast_node": 4,
        "test_flex_attention": 8,
        "test_freedoms": 2,
        "test_fully_sharded": 8,
        "test_functional_values": 2,
        "test_functions": 6,
        "test_functions_given_callables": 2,
        "test_functions_of_users": 2,
        "test_general_hooks": 2,
        "test_generated_rules_compiled": 2,
        "test_generators": 2,
        "test_given_and_reached": 2,
        "test_globals_of_others": 2,
        "test_grad_mode_outside": 28,
        "test_grad_modes": 4,
        "test_grad_of_anything": 28,
        "test_grad_scaler": 2,
        "test_held": 2,
        "test_held_inputs": 2,
        "test_hooks_of_modules": 3,
        "test_in_place_programs": 4,
        "test_inner_memory": 2,
        "test_inner_tensors": 2,
        "test_jagged_lengths": 12,
        "test_jagged_writes": 8,
        "test_kept_layouts": 2,
        "test_kept_results": 2,
        "test_layouts": 2,
        "test_lazy_backward": 2,
        "test_lazy_modules": 2,
        "test_lists_of_numbers": 16,
        "test_loaded_programs": 2,
        "test_made_inside": 2,
        "test_matrix": 36,
        "test_modules": 2,
        "test_new_data": 2,
        "test_new_objects": 8,
        "test_number_ranges": 2,
        "test_numbers": 12,
        "test_numbers_in_python": 6,
        "test_objects": 2,
        "test_objects_as_arguments": 4,
        "test_objects_that_mind": 2,
        "test_of_functions": 4,
        "test_open_jagged": 4,
        "test_open_pads": 2,
        "test_open_settings": 2,
        "test_open_sizes": 8,
        "test_operators": 2,
        "test_ops_on_lists": 2,
        "test_optimizer_step": 2,
        "test_optimizers": 4,
        "test_orders": 2,
        "test_out_of_sight": 2,
        "test_overlapping": 2,
        "test_own_kernels": 6,
        "test_parallel_options": 10,
        "test_partition": 2,
        "test_placed_views": 2,
        "test_planted_bugs": 2,
        "test_premises": 8,
        "test_programs": 4,
        "test_progress": 2,
        "test_pulls": 3,
        "test_raised": 20,
        "test_raised_again": 4,
        "test_random_orders": 2,
        "test_ranks": 2,
        "test_read_numbers": 2,
        "test_reads_in_hooks": 2,
        "test_recorded_inside": 4,
        "test_recurrent_layers": 2,
        "test_reinplacing": 4,
        "test_reinterpreted": 16,
        "test_remembered": 12,
        "test_replaced_in_libraries": 2,
        "test_requiring_grad": 4,
        "test_reshaped_views": 4,
        "test_resizing": 4,
        "test_returned_as_given": 4,
        "test_rules": 3,
        "test_rules_under_transforms": 4,
        "test_running_statistics": 2,
        "test_saved_tensor_hooks": 2,
        "test_seen_classes": 2,
        "test_seen_in_forward": 2,
        "test_sessions": 2,
        "test_settings_of_ops": 2,
        "test_shard": 2,
        "test_sharded_tensors": 2,
        "test_shared_memory": 2,
        "test_shared_memory_under_transforms": 4,
        "test_short_rows": 2,
        "test_shuffled": 2,
        "test_silent_errors": 2,
        "test_sized_calls": 6,
        "test_sizes_in_tensors": 10,
        "test_special": 4,
        "test_special_methods": 3,
        "test_special_values": 4,
        "test_state": 2,
        "test_storages": 4,
        "test_stores": 16,
        "test_strided_windows": 2,
        "test_strides": 2,
        "test_subclass_table": 44,
        "test_table": 4,
        "test_tensor_kinds": 2,
        "test_tensor_parallel": 6,
        "test_tensors_of_rules": 2,
        "test_torchscript": 2,
        "test_touched_classes": 3,
        "test_training_step": 8,
        "test_transforms_outside": 10,
        "test_unchanged": 2,
        "test_unread": 2,
        "test_values_at_open_sizes": 96,
        "test_values_of_ops": 8,
        "test_views_after_writes": 2,
        "test_warm_up": 4,
        "test_what_is_stored": 6,
        "test_what_rules_write": 2,
        "test_whole_numbers": 6,
        "test_whole_step_edits": 8,
        "test_whole_steps": 8,
        "test_wrapped": 4,
        "test_wrapped_containers": 8,
        "test_wrapper_effects": 2,
        "test_wrappers": 2,
    },
    "slow": {
        "test_acting_ops": 2,
        "test_attention": 8,
        "test_autocast_layers": 12,
        "test_autocast_regions": 12,
        "test_autograd_function_db": 18,
        "test_beside_wrappers": 4,
        "test_calls": 4,
        "test_classes": 6,
        "test_classes_of_torch": 4,
        "test_closures": 24,
        "test_collectives": 2,
        "test_communication": 2,
        "test_control_flow": 18,
        "test_custom_ops": 15,
        "test_derived_sizes": 8,
        "test_disagreeing_ranks": 2,
        "test_drawn_values": 2,
        "test_eager_arguments": 3,
        "test_early": 2,
        "test_edits": 24,
        "test_effects": 54,
        "test_effects_levels": 54,
        "test_every_optimizer": 10,
        "test_fully_sharded": 4,
        "test_functions": 24,
        "test_functions_everywhere": 15,
        "test_generators": 4,
        "test_given_and_reached": 6,
        "test_globals_of_others": 9,
        "test_grad_scaler": 8,
        "test_grown_calls": 4,
        "test_in_place": 3,
        "test_inner_tensors": 12,
        "test_jagged_lengths": 6,
        "test_jagged_ops": 12,
        "test_joined": 3,
        "test_joined_slices": 2,
        "test_layouts": 27,
        "test_ldl": 4,
        "test_left_memory": 15,
        "test_lists_of_numbers": 3,
        "test_matrix": 4,
        "test_memory": 4,
        "test_modules": 2,
        "test_networks": 6,
        "test_new_data": 8,
        "test_notebooks": 2,
        "test_numbers": 6,
        "test_numbers_in_python": 4,
        "test_opaque": 3,
        "test_open_grads": 2,
        "test_open_jagged": 8,
        "test_open_sizes": 8,
        "test_operators": 48,
        "test_overlap": 12,
        "test_packaging": 2,
        "test_packed_sequences": 2,
        "test_programs": 96,
        "test_pulls": 18,
        "test_random_programs": 2,
        "test_ranks": 2,
        "test_read_numbers": 12,
        "test_recorded_writes": 15,
        "test_recurrent_layers": 27,
        "test_replaced_in_libraries": 6,
        "test_resizing": 6,
        "test_rules": 10,
        "test_rules_under_transforms": 36,
        "test_schedulers": 6,
        "test_settings_of_ops": 2,
        "test_shard": 2,
        "test_sharded_tensors": 12,
        "test_shared_memory_under_transforms": 24,
        "test_sized_calls": 6,
        "test_stores": 9,
        "test_strided_windows": 54,
        "test_table": 6,
        "test_tensor_kinds": 3,
        "test_tensors_of_rules": 2,
        "test_transforms_outside": 54,
        "test_uncompiled_flex_attention": 23,
        "test_values_at_open_sizes": 60,
        "test_values_of_one_rank": 3,
        "test_warm_up": 4,
        "test_ways": 9,
        "test_what_is_stored": 21,
        "test_what_rules_write": 2,
        "test_whole_numbers": 2,
        "test_whole_step_edits": 36,
        "test_whole_steps": 12,
        "test_workloads": 3,
        "test_wrapped": 72,
        "test_wrappers": 9,
    },
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave some of the many cases of a test for the long group; what is long is slow too."""
    met: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        group = "slow" if item.get_closest_marker("slow") else "fast"
        share = SAMPLED[group].get(item.path.stem)
        if share is None or item.get_closest_marker("long"):
            continue
        test = item.nodeid.partition("[")[0] + group
        if met[test] % share:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.long)
        met[test] += 1


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of some files run on the hostile backend too; cases come in an order."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        # Sets are walked in another order by each process, and workers must collect alike.
        assert not isinstance(mark.args[1], (set, frozenset)), f"{mark.args[0]}: cases in a set"
    module = Path(metafunc.module.__file__).stem
    if module in ON_BOTH and not HOSTILE:
        marks = () if ON_BOTH[module] == "fast" else [pytest.mark.slow, pytest.mark.long]
        backends = ["named", pytest.param("hostile", marks=marks)]
        metafunc.parametrize("what_compiles", backends, indirect=True)


@pytest.fixture(autouse=True)
def what_compiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backends that tests name, or the hostile one instead of each of them."""
    chosen = "hostile" if HOSTILE else getattr(request, "param", "named")
    if chosen == "hostile":
        from funcaot.backends import BACKENDS
        from tests.hostile import COMPILER

        for name in list(BACKENDS):
            monkeypatch.setitem(BACKENDS, name, COMPILER)
    return chosen


@pytest.fixture
def by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transforms straight over a compiled function enter their levels, as others do."""
    off = frozenset({"transform calls"})
    monkeypatch.setattr("funcaot.aot.runtime.outermost.switched_off", lambda: off)


@pytest.fixture(params=["whole", "by level"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Transforms straight over a compiled function are compiled with it, or enter their levels."""
    if request.param == "by level":
        request.getfixturevalue("by_level")
