"""Several threads at once: capture, compile, clear, and torch.compile beside us."""

import contextlib
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot._torch.dynamo.compile_lock import compiling, import_dynamo, replaced_here
from funcaot._torch.inductor import products, scalars
from funcaot._torch.inductor.kernels import compiled_together
from funcaot._torch.inductor.loops import short_rows
from funcaot._torch.inductor.loops import threads as threaded
from funcaot._torch.inductor.product_calls import taken_over
from funcaot.classes.class_cache import cache_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def _in_a_thread(function):
    """Start a thread; its result or error comes when it is joined."""
    found = []

    def run():
        try:
            found.append((function(), None))
        except BaseException as error:  # noqa: BLE001  (raised where it is joined)
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def join(timeout=120):
        thread.join(timeout)
        if not found:
            return False
        result, error = found[0]
        if error is not None:
            raise error
        return result

    return join


class Named:
    def name(self):
        return "original"


def test_a_replaced_method_is_another_for_this_thread_only():
    with replaced_here(Named, "name", lambda self: "replaced"):
        assert Named().name() == "replaced"
        assert _in_a_thread(Named().name)() == "original"
    assert Named().name() == "original"


def test_torch_compile_waits_until_we_have_compiled():
    torch.compiler.reset()
    import_dynamo()
    theirs = torch.compile(lambda x: x.sin() + 1, backend="eager")
    with compiling():
        join = _in_a_thread(lambda: theirs(torch.ones(3)))
        assert join(0.5) is False
    assert_close(join(), torch.ones(3).sin() + 1)
    torch.compiler.reset()


def test_what_another_thread_compiles_has_none_of_our_changes():
    """Even if it didn't wait: artifacts go to its caches under its own keys."""
    if not products.available():
        pytest.skip("this processor's products stay torch's")
    from torch._inductor.utils import run_and_get_code

    x, w = torch.randn(8, 8), torch.randn(8, 8)

    def theirs():
        compiled = torch.compile(lambda x, w: (x @ w).sin(), backend="inductor")
        with torch._inductor.config.patch(fx_graph_cache=False):
            return run_and_get_code(compiled, x, w)

    torch.compiler.reset()
    with contextlib.ExitStack() as stack:
        for change in (
            taken_over,
            threaded.mended,
            short_rows.mended,
            scalars.computed_once,
            compiled_together,
        ):
            stack.enter_context(change())
        value, (code,) = _in_a_thread(theirs)()
    assert "funcaot" not in code
    assert "run_product" not in code
    assert "assert_size_stride" in code
    assert_close(value, (x @ w).sin())
    torch.compiler.reset()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * gradient * x.cos()  # deliberately not the derivative


def test_the_end_of_a_capture_leaves_the_caches_of_classes():
    cache = cache_of(Doubled)
    compiled = funcaot.compile(lambda x: Doubled.apply(x).sin(), backend="eager")
    compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert cache_of(Doubled) is cache
    with funcaot.install(), funcaot.install():
        pass
    assert cache_of(Doubled) is not cache


# --- all at once --------------------------------------------------------------------------------


def _gradient(function, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def _scaled(k, c):
    return lambda x: Doubled.apply(x * k).sin() + c


def _stress(seconds, backend, theirs):
    """Four threads until the time is over; what went wrong in them."""
    stop, errors, rounds = time.monotonic() + seconds, [], [0] * 4
    shared = funcaot.compile(_scaled(2, 1), backend=backend)

    def check(function, compiled, size):
        x = torch.randn(size, dtype=torch.float64)
        assert_close(_gradient(compiled, x), _gradient(function, x))
        with torch.no_grad():
            assert_close(compiled(x), function(x))

    def ours(n):
        function = _scaled(n % 5, n)
        check(function, funcaot.compile(function, backend=backend), 2 + n % 3)
        check(shared.function, shared, 2 + n % 4)

    def clear(n):
        time.sleep(0.02)
        funcaot.clear() if n % 3 == 0 else shared.clear()
        check(shared.function, shared, 2 + n % 4)

    def beside(n):
        def function(x):
            return (x * (n % 5 + 1)).cos() + n

        check(function, torch.compile(function, backend=theirs), 2 + n % 3)

    def repeat(index, work):
        try:
            while time.monotonic() < stop:
                work(rounds[index])
                rounds[index] += 1
        except BaseException:  # noqa: BLE001  (reported by the test)
            errors.append(traceback.format_exc())

    work = (ours, ours, clear, beside)
    threads = [threading.Thread(target=repeat, args=item, daemon=True) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 200)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert not errors, "\n".join(errors)
    assert all(rounds)


@pytest.fixture
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_threads_that_capture_clear_and_use_torch_compile(fresh_dynamo):
    with torch._dynamo.config.patch(recompile_limit=1000):
        _stress(4, "eager", "aot_eager")


@pytest.mark.slow
def test_threads_on_inductor(fresh_dynamo):
    with torch._dynamo.config.patch(recompile_limit=1000):
        _stress(25, "inductor", "inductor")


FIRST = """
import threading, torch, funcaot, warnings
warnings.simplefilter("ignore")
errors, start = [], threading.Barrier(4)
def run(compiler):
    try:
        start.wait()
        x = torch.ones(3, requires_grad=True)
        compiler(lambda x: x.sin())(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())
    except BaseException as error:
        errors.append(repr(error))
threads = [
    threading.Thread(target=run, args=(compiler,))
    for compiler in (funcaot.compile, torch.compile, funcaot.compile, torch.compile)
]
[thread.start() for thread in threads]
[thread.join(200) for thread in threads]
assert not any(thread.is_alive() for thread in threads), "a deadlock"
assert not errors, errors
"""


@pytest.mark.slow
def test_first_imports_in_four_threads():
    for _ in range(2):
        found = subprocess.run(
            [sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=280
        )
        assert found.returncode == 0, found.stderr
