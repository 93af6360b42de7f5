"""Calls that can't be captured, of functions compiled with ``fullgraph=False``, as in eager."""

import copy
import pickle
import random
import warnings

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError

KEPT = {"calls": 0}


def draws_from_python(x):
    return x * random.random()


def reads_memory(x):
    return x * float(x.detach().numpy().sum())


def returns_a_handle(x):
    y = x * 2
    return y, y.register_hook(lambda gradient: gradient * 3)


def seeds(x):
    torch.manual_seed(7)
    return x * torch.rand(3)


def assigns_data_of_another_dtype(x):
    y = torch.ones(3)
    y.data = torch.ones(3, dtype=torch.float64)
    return x * y


def counts_then_reads(x):
    KEPT["calls"] += 1
    return x * float(x.detach().numpy().sum())


def writes_then_reads(x):
    x.detach().add_(1)
    return x * float(x.detach().numpy().sum())


def draws_then_reads(x):
    y = x + torch.rand(3)
    return y * float(x.detach().numpy().sum())


REFUSED = [
    draws_from_python,
    reads_memory,
    returns_a_handle,
    seeds,
    assigns_data_of_another_dtype,
    counts_then_reads,
    writes_then_reads,
    draws_then_reads,
]


def _seen(function):
    """What three calls give, and what they leave behind."""
    torch.manual_seed(0)
    random.seed(0)
    KEPT["calls"] = 0
    found = []
    for scale in (1.0, 2.0, 2.0, 3.0):
        x = torch.full((3,), scale, requires_grad=True)
        result = function(x)
        result = result[0] if isinstance(result, tuple) else result
        (gradient,) = torch.autograd.grad(result.sum(), x)
        found.append((result.detach(), gradient, x.detach().clone(), KEPT["calls"]))
    return [*found, torch.rand(2), random.random()]


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_such_calls_run_as_in_eager(function, backend):
    expected = _seen(function)
    compiled = funcaot.compile(function, backend=backend, fullgraph=False)
    with pytest.warns(CaptureWarning, match="ran without being compiled") as caught:
        found = _seen(compiled)
    assert_close(found, expected, rtol=0, atol=0)
    assert {warning.filename for warning in caught} == {__file__}
    report = funcaot.report(compiled)
    assert len(report.refused) == 1
    assert report.refused[0] in str(report)


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_otherwise_they_are_errors_that_name_the_way_out(function):
    for compiled in (
        funcaot.compile(function, backend="eager"),
        funcaot.compile(function, backend="eager", fullgraph=True),
    ):
        with pytest.raises(UnsupportedError) as caught:
            compiled(torch.ones(3, requires_grad=True))
        assert any("fullgraph=False" in note for note in caught.value.__notes__)


def test_what_is_refused_twice_isnt_captured_again():
    ran = []

    def function(x):
        ran.append(type(x) is torch.Tensor)
        return reads_memory(x)

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    for _ in range(2):
        with pytest.warns(CaptureWarning):
            compiled(torch.ones(3))
    ran.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            compiled(torch.ones(3))
    assert ran == [True] * 3
    compiled.clear()
    with pytest.warns(CaptureWarning):
        compiled(torch.ones(3))


def test_other_calls_of_the_function_are_compiled():
    def function(x, read):
        return reads_memory(x) if read else x.sin()

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    x = torch.arange(3.0)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            assert_close(compiled(x, True), reads_memory(x))
        assert_close(compiled(x, False), x.sin())
    report = funcaot.report(compiled)
    assert len(report.entries) == 1
    assert len(report.refused) == 1


def test_the_configuration_says_what_compile_was_not_told():
    compiled = funcaot.compile(reads_memory, backend="eager")
    strict = funcaot.compile(reads_memory, backend="eager", fullgraph=True)
    with funcaot.config.patch(fullgraph=False):
        with pytest.warns(CaptureWarning):
            assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
        with pytest.raises(UnsupportedError):
            strict(torch.ones(3))
    with pytest.raises(UnsupportedError):
        compiled(torch.ones(3))


def test_the_functions_own_errors_pass_through():
    def function(x):
        x.numpy()
        raise ValueError("mine")

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            compiled(torch.ones(3))


class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * float(x.detach().numpy().sum())


def test_modules_and_copies_of_them():
    module = Reads()
    compiled = funcaot.compile(module, backend="eager", fullgraph=False)
    copies = [copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))]
    x = torch.ones(2, 3)
    for calls in (1, 2, 3):
        for each in (compiled, *copies):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CaptureWarning)
                result = each(x)
            assert_close(result, 6 * module.linear(x))
            assert each.calls == calls


@pytest.mark.parametrize("transform", ["grad", "vmap", "vmap_grad", "jvp"])
def test_under_transforms(transform):
    def function(x):
        random.random()
        return x.sin().sum()

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    apply = {
        "grad": lambda f: torch.func.grad(f)(torch.arange(3.0)),
        "vmap": lambda f: torch.func.vmap(f)(torch.rand(4, 3)),
        "vmap_grad": lambda f: torch.func.vmap(torch.func.grad(f))(torch.rand(4, 3)),
        "jvp": lambda f: torch.func.jvp(f, (torch.arange(3.0),), (torch.ones(3),)),
    }[transform]
    for _ in range(3):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            found = apply(compiled)
        torch.manual_seed(0)
        assert_close(found, apply(function))


def test_inside_of_another_capture_the_outer_one_decides():
    inner = funcaot.compile(reads_memory, backend="eager", fullgraph=False)
    strict = funcaot.compile(lambda x: inner(x) + 1, backend="eager")
    with pytest.raises(UnsupportedError):
        strict(torch.ones(3))
    lenient = funcaot.compile(lambda x: inner(x) + 1, backend="eager", fullgraph=False)
    with pytest.warns(CaptureWarning):
        assert_close(lenient(torch.ones(3)), torch.full((3,), 4.0))


def test_sizes_that_values_decide_before_what_is_refused():
    def function(x):
        kept = x[x > 1]
        return kept * float(kept.detach().numpy().sum())

    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    for stop in (3.0, 5.0, 6.0, 5.0):
        x = torch.arange(stop)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            assert_close(compiled(x), function(x))


def test_arguments_that_cant_be_described():
    def function(x, sparse):
        return x + sparse.to_dense()

    x = torch.ones(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Compressed layouts are in beta state.
        sparse = torch.eye(2).to_sparse_csr().requires_grad_()
    with pytest.raises(UnsupportedError):
        funcaot.compile(function, backend="eager")(x, sparse)
    compiled = funcaot.compile(function, backend="eager", fullgraph=False)
    with pytest.warns(CaptureWarning):
        assert_close(compiled(x, sparse), function(x, sparse))


class Normalizes(torch.nn.Module):
    """It takes its scale from the first batch."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("done", torch.tensor(0.0))

    def forward(self, x):
        if not self.done > 0:
            self.scale.data = 1 / (x.std(0) + 1e-6).data
            self.done = torch.tensor(1.0)
        return x * self.scale


def test_a_layer_that_assigns_to_data_in_its_first_call():
    results = []
    for compiles in (False, True):
        layer = Normalizes()
        called = funcaot.compile(layer, backend="eager") if compiles else layer
        found = []
        for factor in (1.0, 2.0, 3.0):
            result = called(torch.arange(6.0).reshape(2, 3) ** 2 * factor)
            result.sum().backward()
            found.append((result.tolist(), layer.scale.grad.tolist(), layer.scale.tolist()))
        results.append(found)
    assert results[0] == results[1]
    assert len(funcaot.report(called).entries) == 2
