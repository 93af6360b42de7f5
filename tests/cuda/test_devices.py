"""What only another device has: copies, streams, mixed operands, CUDA graphs, refusals."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import FuncaotError, UnsupportedError
from tests.cuda.comparing import close, looks, versions

BACKENDS = ["inductor", "eager"]
# Advice of Inductor's about speed.
pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32")


def check(function, make, calls=3, backend="inductor"):
    """Compare a function that may write to its arguments, and write to what came back."""
    compiled = funcaot.compile(function, backend=backend)
    for number in range(calls):
        seen, counts = [], []
        for call in (function, compiled):
            torch.manual_seed(number)
            arguments = make()
            results = call(*arguments)
            before = looks([results, arguments])
            counts.append(versions(arguments))
            for each in results if isinstance(results, tuple) else (results,):
                if isinstance(each, torch.Tensor) and not each.requires_grad:
                    each.add_(1)
            seen.append([*before, *looks([results, arguments])])
        close(seen[1], seen[0])
        assert counts[1] == counts[0]


FUNCTIONS = {
    "written to": lambda x, c: x.mul_(2) + c,
    "view returned": lambda x, c: x.t()[1:],
    "argument returned": lambda x, c: (x, x.add_(c.to(x.device))),
    "constant of the CPU": lambda x, c: x * torch.tensor(2.0, dtype=torch.float64),
    "number of the CPU": lambda x, c: x * c,
    "copied to the CPU": lambda x, c: (x.cpu().sin(), x.to("cpu", torch.float32)),
    "copied back": lambda x, c: x.cpu().exp().to(x.device) * x,
    "copied without waiting": lambda x, c: x.to("cpu", non_blocking=False) + 1,
    "read": lambda x, c: x * x.sum().item(),
    "branched": lambda x, c: x.sin() if x.is_cuda else x.cos(),
    "named device": lambda x, c: x + torch.ones(4, device=x.device.type, dtype=x.dtype),
    "context": lambda x, c: in_context(x),
    "nonzero": lambda x, c: x[x > 0].sum() + x.nonzero().sum(),
    "masked write": lambda x, c: x.masked_fill_(x > 0, 0.5),
    "index_put": lambda x, c: x.index_put_((torch.zeros(2, dtype=torch.int64),), c, True),
    "copy_ from the CPU": lambda x, c: x.copy_(c.expand(5, 4)),
    "data": lambda x, c: x.detach().zero_(),
    "out": lambda x, c: torch.mul(x, 2, out=x),
    "empty": lambda x, c: x[:0].sum(0),
}


def in_context(x):
    with torch.device(x.device):
        return x * torch.arange(4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(device, name, backend):
    def make():
        return (
            torch.randn(5, 4, device=device, dtype=torch.float64),
            torch.tensor(1.5, dtype=torch.float64),
        )

    check(FUNCTIONS[name], make, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_cross_devices(device, backend):
    def function(x, w):
        return (x.to(w.device) @ w).tanh().cpu().sum(0)

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(3):
        x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        w = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
        seen = []
        for call in (function, compiled):
            value = call(x, w)
            grads = torch.autograd.grad(value.sin().sum(), (x, w), create_graph=True)
            seen.append(looks([value, grads, torch.autograd.grad(grads[0].norm(), (x, w))]))
        close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_function_on_both_devices(device, backend):
    def function(x):
        return x.sin() * (2 if x.device.type == "cpu" else 3)

    compiled = funcaot.compile(function, backend=backend)
    for where in ("cpu", device, "cpu", device):
        x = torch.randn(4, device=where, requires_grad=True)
        value = compiled(x)
        torch.testing.assert_close(value, function(x))
        (grad,) = torch.autograd.grad(value.sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(function(x).sum(), x)[0])


def test_a_module_that_moves(device):
    model = nn.Linear(4, 3)
    compiled = funcaot.compile(model)
    for where in ("cpu", device, "cpu", device):
        model.to(where)
        x = torch.randn(5, 4, device=where)
        value = compiled(x)
        torch.testing.assert_close(value, model(x))
        model.zero_grad()
        value.sum().backward()
        assert model.weight.grad.device == x.device


def test_from_other_threads_and_streams(device):
    compiled = funcaot.compile(lambda x: (x @ x).sin().sum())
    given = torch.randn(64, 64, device=device, dtype=torch.float64)

    def work(_):
        stream = torch.cuda.Stream() if device == "cuda" else None
        if stream is not None:
            stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            x = given.clone().requires_grad_()
            (expected,) = torch.autograd.grad((x @ x).sin().sum(), x)
            for _ in range(5):
                (found,) = torch.autograd.grad(compiled(x), x)
                torch.testing.assert_close(found, expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_slow_stream_is_waited_for(device):
    """A backward runs on the stream of its forward, as eager's nodes do."""
    if device != "cuda":
        pytest.skip("streams")
    compiled = funcaot.compile(lambda x: (x * 2).sin())
    x = torch.randn(1000, device=device, requires_grad=True)
    compiled(x).sum().backward()  # compiled before it is timed
    x.grad = None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        value = compiled(x)
    torch.cuda.current_stream().wait_stream(stream)
    value.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x.detach() * 2).cos())


def test_inside_a_cuda_graph(device):
    """A user may record a compiled function that ran before."""
    if device != "cuda":
        pytest.skip("CUDA graphs")
    with funcaot.config.patch(check_aliases=False):  # it reads memory while a stream records
        _record_and_replay(torch.randn(32, 32, device=device))


def _record_and_replay(x):
    compiled = funcaot.compile(lambda x: (x @ x).sin())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            compiled(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = compiled(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(value, (x @ x).sin())


def test_export_is_refused(device, tmp_path):
    if device != "cuda":
        pytest.skip("artifacts are for CPUs")
    with pytest.raises(UnsupportedError, match="cuda"):
        funcaot.export(torch.sin, (torch.ones(3, device=device),), path=tmp_path / "f.pt2")


def test_training_artifacts_leave_kernels_out(device, tmp_path):
    """What is left out is captured again, with the same numbers."""
    x = torch.randn(5, 4, device=device, requires_grad=True)

    def function(x):
        return (x.sin() @ x.t()).sum()

    path = tmp_path / "artifacts"
    for _ in range(2):
        compiled = funcaot.compile(function, artifacts=path)
        (found,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(found, torch.autograd.grad(function(x), x)[0])
        with contextlib.suppress(FuncaotError):  # there is nothing to keep
            compiled.save(path)


def test_errors_are_eagers(device):
    if device != "cuda":
        pytest.skip("two devices")
    compiled = funcaot.compile(lambda x, y: x + y)
    both = torch.ones(3, device=device), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        compiled(*both)
    torch.testing.assert_close(compiled(both[0], both[0]), both[0] * 2)


def test_the_report(device):
    compiled = funcaot.compile(lambda x: (x.sin() @ x.t()).tanh().sum(), backend="eager")
    x = torch.rand(8, 3, device=device, requires_grad=True)
    (force,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    force.square().sum().backward()
    assert device in str(funcaot.report(compiled)) or str(funcaot.report(compiled))
    assert funcaot.lower(torch.sin, x.detach()).graph is not None
