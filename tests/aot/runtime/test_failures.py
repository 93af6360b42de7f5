"""An exception anywhere leaves nothing behind: no mode, no level, no entry; the next call works."""

import contextlib
import gc
import random
import weakref

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot._torch.levels import functorch


class BoomError(Exception):
    pass


def assert_nothing_is_left():
    assert functorch.peek_interpreter_stack() is None
    assert functorch.dispatch_mode_count() == 0
    assert not torch._C._is_torch_function_mode_enabled()
    assert torch.is_grad_enabled()
    assert torch.randn(2).add(1).__class__ is torch.Tensor


def failing(fails):
    def f(x):
        y = x.sin()
        if fails:
            raise BoomError("from the user")
        return y.sum()

    return f


def test_an_exception_in_the_forward_passes_through_unchanged():
    fails = [1]
    compiled = funcaot.compile(failing(fails), backend="eager")
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(BoomError, match="from the user") as caught:
        compiled(x)
    assert caught.value.__cause__ is None
    assert_nothing_is_left()
    assert funcaot.report(compiled).entries == ()
    fails.clear()
    assert_close(compiled(x), x.sin().sum())


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_an_exception_under_a_transform_passes_through_unchanged(transform):
    compiled = funcaot.compile(failing([1]), backend="eager")
    with pytest.raises(BoomError, match="from the user"):
        transform(compiled)(torch.randn(3))
    assert_nothing_is_left()


class FailingBackward(funcaot.Function):
    fails = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        if FailingBackward.fails:
            raise BoomError("from the backward")
        return gradient * 2


def test_an_exception_in_the_backward_passes_through_unchanged():
    compiled = funcaot.compile(lambda x: FailingBackward.apply(x).sum(), backend="eager")
    x = torch.randn(3, requires_grad=True)
    y = compiled(x)
    FailingBackward.fails = True
    with pytest.raises(BoomError, match="from the backward"):
        torch.autograd.grad(y, x, retain_graph=True)
    assert_nothing_is_left()
    assert funcaot.report(compiled).backward_traces == 0
    FailingBackward.fails = False
    assert_close(torch.autograd.grad(y, x)[0], torch.full((3,), 2.0))
    assert funcaot.report(compiled).backward_traces == 1


@pytest.mark.parametrize("stage", ["inference", "forward", "backward"])
def test_a_failing_compiler_is_named_with_its_stage_and_its_exception(stage):
    def compiler(graph, inputs):
        raise BoomError("from the compiler")

    def fine(graph, inputs):
        return graph

    function = funcaot.aot_function(
        lambda x: x.sin().sum(),
        fw_compiler=fine if stage == "backward" else compiler,
        bw_compiler=compiler,
    )
    x = torch.randn(3, requires_grad=stage != "inference")
    with pytest.raises(funcaot.errors.StageError) as caught:
        function(x).backward()
    assert stage in str(caught.value)
    assert "compiler" in str(caught.value)
    assert isinstance(caught.value.__cause__, BoomError)
    assert_nothing_is_left()


def test_a_data_dependent_branch_is_refused_with_a_remedy():
    compiled = funcaot.compile(lambda x: x + 1 if x.sum() > 0 else x - 1, backend="eager")
    refused = funcaot.config.patch(specialize_on_values=False)
    with refused, pytest.raises(funcaot.errors.UnsupportedError, match="Instead:"):
        compiled(torch.randn(3))
    assert_nothing_is_left()


def test_an_unknown_backend_lists_the_known_ones():
    with pytest.raises(funcaot.errors.FuncaotError, match="inductor"):
        funcaot.compile(lambda x: x, backend="indcutor")


def test_a_missing_function_is_refused():
    with pytest.raises(funcaot.errors.FuncaotError, match="something to compile"):
        funcaot.compile(3)


def test_memory_access_outside_of_a_function_is_refused_with_a_remedy():
    compiled = funcaot.compile(lambda x: torch.from_numpy(x.numpy() * 2), backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError, match="forward of a funcaot"):
        compiled(torch.randn(3))
    assert_nothing_is_left()


def test_seeding_inside_is_refused():
    def f(x):
        torch.manual_seed(3)
        return torch.rand_like(x)

    compiled = funcaot.compile(f, backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError, match="seed outside"):
        compiled(torch.randn(3))
    torch.manual_seed(3)
    assert_nothing_is_left()


def test_printing_under_a_dual_level_leaves_dispatch_as_it_was():
    compiled = funcaot.compile(lambda x: torch.quantile(x, 0.5), backend="eager")
    x = torch.rand(5)
    expected = torch.func.jvp(lambda x: torch.quantile(x, 0.5), (x,), (x,))
    assert_close(torch.func.jvp(compiled, (x,), (x,)), expected)
    assert "tensor" in repr(x)
    assert_nothing_is_left()


def test_a_failed_check_of_values_raises_as_in_eager():
    compiled = funcaot.compile(torch.linalg.cholesky, backend="eager")
    assert_close(compiled(torch.eye(2)), torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(-torch.eye(2))


def first_step_of_an_optimizer():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])

    def step(x):
        parameter.grad = x
        optimizer.step()
        parameter.grad = None

    return step


def raised_by_the_user():
    return failing([1])


def raised_by_eager():
    return lambda x: x + torch.ones(7)


def run_as_it_is():
    return lambda x: x * random.random()


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.parametrize(
    "make", [first_step_of_an_optimizer, raised_by_the_user, raised_by_eager, run_as_it_is]
)
def test_a_call_that_runs_as_it_is_keeps_no_tensor_of_its_capture(make):
    # Else the memory of gradients is held until the collector of cycles runs.
    funcaot.compile(torch.sin, backend="eager")(torch.ones(2))
    compiled, x = funcaot.compile(make(), backend="eager", fullgraph=False), torch.ones(3)
    kept = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(BoomError, RuntimeError):
            compiled(x)
        del x
        assert kept() is None
    finally:
        gc.enable()
