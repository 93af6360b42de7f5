"""Entries: bounded, least recent first, gone with their function; interrupted, forked, copied."""

import copy
import dataclasses
import gc
import linecache
import os
import pickle
import signal
import sys
import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.aot.runtime.entry import Entry
from funcaot.errors import FuncaotError, RecompileWarning, StageError


def double(x):
    return x * 2


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


def compiled_double(**options):
    # One entry per size; what programs with open sizes do is another file's matter.
    return funcaot.compile(lambda x: x * 2, backend="eager", dynamic=False, **options)


def misses(compiled):
    return funcaot.report(compiled).cache_misses


def sizes(compiled):
    return sorted(entry.signature.leaves[0].shape[0] for entry in compiled.entries)


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("fast_path", [True, False])
def test_the_least_recently_used_entry_of_a_function_is_dropped(fast_path):
    compiled = compiled_double()
    with funcaot.config.patch(entries_per_function=3, fast_path=fast_path):
        for size in (1, 2, 3):
            for _ in range(3):
                compiled(torch.ones(size))
        compiled(torch.ones(1))
        compiled(torch.ones(4))
        assert sizes(compiled) == [1, 3, 4]
        compiled(torch.ones(3))
        compiled(torch.ones(2))
        assert sizes(compiled) == [2, 3, 4]
        assert misses(compiled) == 5
        assert_close(compiled(torch.ones(1)), torch.full((1,), 2.0))


def test_the_warning_names_what_keeps_changing():
    compiled = funcaot.compile(lambda x, scale, kind: x * scale, backend="eager")
    with funcaot.config.patch(entries_per_function=3), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(6):
            compiled(torch.ones(2, 2), 0.5, f"mean_{step}")
    (warning,) = seen
    assert warning.category is RecompileWarning
    assert "What keeps changing: kind (4 values, now 'mean_3')" in str(warning.message)
    assert "scale" not in str(warning.message)
    assert warning.filename == __file__
    assert "entries_per_function" in str(warning.message)


def test_the_ninth_program_comes_with_a_warning_at_the_users_line():
    compiled = funcaot.compile(lambda x, kind: x * len(kind), backend="eager")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(12):
            compiled(torch.ones(2), f"mean_{step}")
    (warning,) = seen
    assert "compiled for 8 different calls" in str(warning.message)
    assert "kind (9 values, now 'mean_8')" in str(warning.message)
    assert warning.filename == __file__
    assert "compiled(torch.ones(2), f" in linecache.getline(__file__, warning.lineno)


def test_entries_say_what_differed():
    compiled = funcaot.compile(lambda x, parts, *, kind="a": x + parts[0], backend="eager")
    compiled(torch.ones(2), [torch.ones(2)])
    compiled(torch.ones(2), [torch.ones(2)], kind="b")
    compiled(torch.ones(2), [torch.ones(2, dtype=torch.float64)], kind="b")
    compiled(torch.ones(2), [torch.ones(2), 1], kind="b")
    reasons = [entry.reason for entry in funcaot.report(compiled).entries][1:]
    assert "is now (., [.], kind=.)" in reasons[0]
    assert reasons[1] == "the dtype of parts[0] was torch.float32 and is now torch.float64"
    assert "the structure of the arguments was (., [.], kind=.) and is now" in reasons[2]


def test_what_keeps_changing_may_be_a_shape():
    compiled = compiled_double()
    said = r"the shape of x \(3 values, now \[3, 1\]\)"
    with funcaot.config.patch(entries_per_function=2):
        compiled(torch.ones(1, 1)), compiled(torch.ones(2, 1))
        with pytest.warns(RecompileWarning, match=said):
            compiled(torch.ones(3, 1))


@pytest.mark.parametrize("fast_path", [True, False])
def test_the_bound_of_all_functions_together(fast_path):
    funcaot.clear()
    functions = [compiled_double() for _ in range(4)]
    with funcaot.config.patch(entries_in_all=6, fast_path=fast_path):
        for size in (1, 2, 3):
            for function in functions:
                function(torch.ones(size))
            functions[0](torch.ones(1))  # stays in use
        assert sum(len(function.entries) for function in functions) <= 6
        assert 1 in sizes(functions[0])
        for function in functions:
            assert_close(function(torch.ones(2)), torch.full((2,), 2.0))


def test_clear():
    first, second = compiled_double(), compiled_double()
    for _ in range(3):
        first(torch.ones(2)), second(torch.ones(2))
    first.clear()
    assert first.entries == ()
    assert len(second.entries) == 1
    assert_close(first(torch.ones(2)), torch.full((2,), 2.0))
    assert misses(first) == 2
    funcaot.clear()
    assert first.entries == second.entries == ()


def test_hits_are_counted_on_every_path():
    compiled = compiled_double()
    for _ in range(10):
        compiled(torch.ones(2))
    assert funcaot.report(compiled).cache_hits == 9
    compiled.clear()
    assert funcaot.report(compiled).cache_hits == 9


# --- configuration ------------------------------------------------------------------------------


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(FuncaotError, match="entries_per_function"):
        funcaot.config.set(speed="high")


def test_a_value_of_another_type_is_refused():
    with pytest.raises(FuncaotError, match="int, at least 0"):
        funcaot.config.set(entries_in_all="many")
    with pytest.raises(FuncaotError, match="bool"):
        funcaot.config.set(fast_path=1)


def test_options_come_from_the_environment():
    made = funcaot.config.from_environment(
        {"FUNCAOT_FAST_PATH": "off", "FUNCAOT_ENTRIES_IN_ALL": "7", "OTHER": "1"}
    )
    assert (made.fast_path, made.entries_in_all) == (False, 7)
    with pytest.raises(FuncaotError, match="FUNCAOT_FAST_PATH"):
        funcaot.config.from_environment({"FUNCAOT_FAST_PATH": "perhaps"})


def test_a_patch_is_undone_when_its_block_raises():
    before = funcaot.config.get()

    def work():
        with funcaot.config.patch(fast_calls=1):
            assert funcaot.config.get().fast_calls == 1
            raise ValueError("out")

    with pytest.raises(ValueError, match="out"):
        work()
    assert funcaot.config.get() is before


# --- nothing is kept alive ----------------------------------------------------------------------


def count_lambdas(count):
    references = []
    for index in range(count):
        weight = torch.ones(3)
        compiled = funcaot.compile(lambda x, weight=weight: x * weight, backend="eager")
        x = torch.ones(3, requires_grad=True)
        for _ in range(3 if index % 10 == 0 else 1):
            compiled(x).sum().backward()
        references += [weakref.ref(compiled), weakref.ref(weight), weakref.ref(compiled.entries[0])]
        del compiled, weight
    gc.collect()
    return sum(reference() is not None for reference in references)


def test_entries_die_with_their_function():
    assert count_lambdas(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_leak_over_many_functions(count):
    count_lambdas(150)  # what torch and the allocator keep for good, they have by now
    gc.collect()
    entries = sum(type(thing) is Entry for thing in gc.get_objects())
    objects, size = len(gc.get_objects()), resident_megabytes()
    assert count_lambdas(count) == 0
    assert sum(type(thing) is Entry for thing in gc.get_objects()) == entries
    assert len(gc.get_objects()) - objects < 1000
    assert resident_megabytes() - size < 16


def resident_megabytes():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:  # not on Linux
        return 0.0


@pytest.mark.parametrize("fast_path", [True, False])
def test_tensors_are_not_kept_alive_by_a_cache(fast_path):
    with funcaot.config.patch(fast_path=fast_path):
        module = Small()
        compiled = funcaot.compile(module, backend="eager")
        x = torch.ones(2, 3, requires_grad=True)
        for _ in range(3):
            out = compiled(x)
            out.sum().backward()
        references = [weakref.ref(tensor) for tensor in (x, out, x.grad, module.linear.weight)]
        references.append(weakref.ref(module.linear))
        module.linear = nn.Linear(3, 3)
        del x, out
        gc.collect()
        assert [reference() for reference in references] == [None] * len(references)


# --- threads, processes, interruptions ----------------------------------------------------------


def in_threads(work, count=8):
    errors, barrier = [], threading.Barrier(count)

    def run(index):
        try:
            barrier.wait()
            work(index)
        except BaseException as error:  # noqa: BLE001 - reported by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_concurrent_first_calls_compile_once(backend):
    module = Small()
    compiled = funcaot.compile(module, backend=backend)

    def work(index):
        torch.manual_seed(index)
        x = torch.randn(2, 3, requires_grad=True)
        ours, theirs = compiled(x), module(x)
        assert_close(ours, theirs)
        assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x))

    in_threads(work)
    made = funcaot.report(compiled)
    assert made.cache_misses == 1
    assert made.backward_traces == 1
    assert made.graphs_compiled == 2


def test_concurrent_calls_with_changing_signatures():
    compiled = funcaot.compile(lambda x, scale: (x * scale).sin(), backend="eager")

    def work(index):
        for step in range(60):
            size, scale = 1 + (step + index) % 4, step % 2
            x = torch.randn(size, requires_grad=step % 3 > 0)
            with torch.set_grad_enabled(step % 5 > 0):
                out = compiled(x, scale)
                assert_close(out, (x * scale).sin())
            if out.requires_grad:
                (ours,) = torch.autograd.grad(out.sum(), x)
                assert_close(ours, (x * scale).cos().detach() * scale)

    in_threads(work, 4)


def test_fork_after_use():
    compiled = compiled_double()
    compiled(torch.ones(2)), compiled(torch.ones(2))
    with compiled.settings.lock:
        child = os.fork()
        if child == 0:
            try:
                # In another thread, as the parent's lock would let its own thread pass.
                results = []
                thread = threading.Thread(
                    target=lambda: results.extend(
                        [compiled(torch.ones(2)), compiled(torch.ones(3))]
                    )
                )
                thread.start()
                thread.join(60)
                right = [r.tolist() for r in results] == [[2.0] * 2, [2.0] * 3]
                os._exit(0 if right else 1)
            finally:
                os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class Interrupting:
    """Raises when asked to, at one point of the pipeline."""

    def __init__(self, error):
        self.error = error
        self.armed = True

    def __call__(self, *args):
        if self.armed:
            raise self.error

    def compiler(self, module, inputs):
        self()
        return module

    def backward_compiler(self, module, inputs):
        return module


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("stopped")], ids=repr)
@pytest.mark.parametrize(
    "stage", ["function", "forward compiler", "backward rule", "backward compiler"]
)
def test_an_exception_in_any_stage_leaves_the_function_usable(stage, error):
    stop = Interrupting(error)

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, g):
            if stage == "backward rule":
                stop()
            return g * 3

    def function(x):
        if stage == "function":
            stop()
        return Rule.apply(x).sin()

    passing = stop.backward_compiler
    compiled = funcaot.aot_function(
        function,
        stop.compiler if stage == "forward compiler" else passing,
        stop.compiler if stage == "backward compiler" else passing,
    )
    x = torch.randn(3, requires_grad=True)
    for _ in range(2):
        with pytest.raises((type(error), StageError)):
            torch.autograd.grad(compiled(x).sum(), x)
    stop.armed = False
    for _ in range(3):
        (ours,) = torch.autograd.grad(compiled(x).sum(), x)
        assert_close(ours, torch.autograd.grad(function(x).sum(), x)[0])
    assert torch.is_grad_enabled()


# An interrupt inside a callback of a weak reference goes no further.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_interrupt_at_any_moment_leaves_the_function_usable():
    def interrupt(*_):
        raise KeyboardInterrupt

    def function(x):
        for _ in range(60):
            x = (x * 1.01).sin()
        return x.sum()

    interrupted, traced = 0, sys.gettrace()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for step in range(12):
            compiled = funcaot.compile(function, backend="eager")
            x = torch.randn(3, requires_grad=True)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.003 + 0.01 * step)
                torch.autograd.grad(compiled(x), x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            assert torch.is_grad_enabled()
            assert torch._C._len_torch_dispatch_stack() == 0
            assert torch._C._len_torch_function_stack() == 0
            assert sys.gettrace() is traced
            (ours,) = torch.autograd.grad(compiled(x), x)
            assert_close(ours, torch.autograd.grad(function(x), x)[0])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted


class Doubled(torch.utils.data.Dataset):
    function = funcaot.compile(double, backend="eager")

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return Doubled.function(torch.full((2,), float(index)))


def test_workers_of_a_data_loader():
    Doubled.function(torch.ones(2))
    loader = torch.utils.data.DataLoader(Doubled(), batch_size=3, num_workers=2)
    expected = 2 * torch.arange(6.0)[:, None].expand(6, 2)
    assert_close(torch.cat(list(loader)), expected)


# --- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_copied_module_compiles_anew(copied, backend):
    compiled = funcaot.compile(Small(), backend=backend)
    x = torch.randn(2, 3)
    if backend == "eager":
        compiled(x), compiled(x)
    other = copied(compiled)
    assert isinstance(other, Small)
    assert misses(other) == 0
    if backend == "eager":
        with torch.no_grad():
            other.linear.weight.mul_(2)
        for _ in range(3):
            assert_close(other(x), Small.forward(other, x))
            assert_close(compiled(x), Small.forward(compiled, x))
        assert misses(other) == 1
        assert not torch.equal(other(x), compiled(x))


def passed_on(module, inputs):
    return module


def test_a_module_with_a_backend_of_the_user_is_copied():
    compiled = funcaot.compile(Small(), backend=passed_on)
    x = torch.randn(2, 3)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert_close(other(x), compiled(x))


def test_a_copied_function_compiles_anew():
    compiled = funcaot.compile(double, backend="eager")
    compiled(torch.ones(2))
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert misses(other) == 0
        assert_close(other(torch.ones(2)), torch.full((2,), 2.0))


def test_every_option_is_documented():
    page = Path(__file__).parents[3] / "docs" / "recompilation.md"
    text = page.read_text()
    for option in dataclasses.fields(funcaot.config.Config):
        assert f"`{option.name}`" in text
        assert f"`FUNCAOT_{option.name.upper()}`" in text
        default = int(option.default) if isinstance(option.default, bool) else option.default
        assert f"| `{default}` |" in text
