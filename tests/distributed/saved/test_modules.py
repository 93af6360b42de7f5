"""Rank 0 compiles modules under DDP and whole training steps, alone, and all ranks run them."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import funcaot
import funcaot.distributed
from funcaot.aot.runtime.module import compiled_of
from tests.distributed.saved import layouts


def _counts(compiled):
    report = funcaot.report(compiled)
    return report.cache_misses, report.backward_traces, report.graphs_compiled


def _own(step):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, 3, generator=generator)


def _ddp_for_all(order, backend, path):
    def made(**options):
        module = DistributedDataParallel(layouts.Energy(), find_unused_parameters=order == 2)
        return funcaot.compile(module, backend=backend, **options)

    if dist.get_rank() == 0:
        # It is wrapped on all ranks, since DDP compares what they have.
        first = made()
        first.warm_up(torch.ones(4, 3, requires_grad=True), orders=order)
        saved = first.save(path)
        assert saved.programs == 1, saved
        assert not saved.left_out, saved
    else:
        DistributedDataParallel(layouts.Energy())
    dist.barrier()
    compiled, plain = made(artifacts=path), layouts.Energy()
    for step in range(3):
        found = layouts.derivatives(compiled, _own(step), order)
        expected = layouts.derivatives(plain, _own(step), order)
        for gradient in expected[-4:]:
            if gradient is not None:
                dist.all_reduce(gradient)
                gradient /= 2
        torch.testing.assert_close(found, expected)
        compiled.zero_grad()
        plain.zero_grad()
    assert _counts(compiled) == (0, 0, 0), compiled_of(compiled).entries[0].reason


@pytest.mark.parametrize(
    ("order", "backend"), [(1, "eager"), (2, "eager"), (1, "inductor"), (2, "inductor")]
)
def test_ddp(ranks, order, backend, tmp_path):
    ranks.run(_ddp_for_all, order, backend, f"{tmp_path}/programs")


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.01, fused=True),
}


def _step(name, order):
    """A whole training step with its own reduction of gradients, and its parameters."""
    model = layouts.Energy()
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x):
        found = model(x)
        if order == 2:
            x = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = found.square().mean()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, list(model.parameters())


def _steps_for_all(name, order, backend, path):
    # What torch does once in a process, and reads for it, is no part of a step.
    _step(name, order)[0](_own(0))
    if dist.get_rank() == 0:
        step, _ = _step(name, order)
        first = funcaot.compile(step, backend=backend)
        first.warm_up(_own(0))
        saved = first.save(path)
        assert saved.programs, saved
    dist.barrier()
    step, parameters = _step(name, order)
    eager, expected = _step(name, order)
    compiled = funcaot.compile(step, backend=backend, artifacts=path)
    for index in range(4):
        torch.testing.assert_close(compiled(_own(index)), eager(_own(index)))
        torch.testing.assert_close(parameters, expected)
    # The first step of an optimizer that makes its state then is eager's.
    assert _counts(compiled)[1:] == (0, 0), [entry.reason for entry in compiled.entries]
    assert _counts(compiled)[0] <= 1, [entry.reason for entry in compiled.entries]


@pytest.mark.parametrize(
    ("name", "order", "backend"),
    [("SGD", 1, "eager"), ("Adam", 1, "eager"), ("Adam", 2, "eager"), ("SGD", 1, "inductor")],
)
def test_whole_steps(ranks, name, order, backend, tmp_path):
    ranks.run(_steps_for_all, name, order, backend, f"{tmp_path}/programs")


LAYOUTS = {
    "shard": lambda module, mesh: funcaot.distributed.shard(module, mesh),
    "parallelize_module": lambda module, mesh: parallelize_module(
        module, mesh, {"first": ColwiseParallel(), "last": RowwiseParallel()}
    ),
}


def _made(layout, features):
    mesh = dist.init_device_mesh("cpu", (2,))
    return LAYOUTS[layout](layouts.Energy(features), mesh), layouts.Energy(features)


def _sharded_for_all(layout, features, order, backend, path):
    compiled, plain = _made(layout, features)
    first = funcaot.compile(compiled, backend=backend)
    if dist.get_rank() == 0:
        first.warm_up(torch.ones(4, 3, requires_grad=True), orders=order)
        saved = first.save(path)
        assert saved.programs == 1, saved
        assert not saved.left_out, saved
    dist.barrier()
    again, _ = _made(layout, features)
    compiled = funcaot.compile(again, backend=backend, artifacts=path)
    # What a rank has to compute alone is its own under the one, and that of all under the other.
    own = _own if layout == "shard" else lambda step: torch.full((4, 3), 0.1 * step)
    for step in range(3):
        found = layouts.derivatives(compiled, own(step), order)
        expected = layouts.derivatives(plain, own(step), order)
        for gradient in expected[-4:]:
            if gradient is not None and layout == "shard":
                dist.all_reduce(gradient)
                gradient /= 2
        torch.testing.assert_close(layouts.whole(found), layouts.whole(expected))
        compiled.zero_grad()
        plain.zero_grad()
    return compiled


def _evenly(layout, order, backend, path):
    compiled = _sharded_for_all(layout, 4, order, backend, path)
    assert _counts(compiled) == (0, 0, 0), compiled_of(compiled).entries[0].reason


def _unevenly(layout, order, backend, path):
    """Where ranks have other parts, the one that made it takes it, and the other one doesn't."""
    compiled = _sharded_for_all(layout, 5, order, backend, path)
    assert _counts(compiled)[0] == dist.get_rank(), compiled_of(compiled).entries[0].reason
    if dist.get_rank():
        assert "doesn't serve this call" in compiled_of(compiled).entries[0].reason


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("order", "backend"), [(1, "eager"), (2, "eager"), (1, "inductor"), (2, "inductor")]
)
def test_dtensors(ranks, layout, order, backend, tmp_path):
    ranks.run(_evenly, layout, order, backend, f"{tmp_path}/programs", deadline=60)


def test_parts_that_differ(ranks, tmp_path):
    ranks.run(_unevenly, "shard", 2, "eager", f"{tmp_path}/programs", deadline=60)
