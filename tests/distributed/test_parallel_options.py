"""What DistributedDataParallel can be asked for, at every order, against one process.

The oracle computes each rank's gradients by itself and reduces them as the documentation says.
"""

import contextlib
import copy
import io
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import funcaot
from tests.distributed.cases import ORDERS, Energy, batch, chosen, loss_of
from tests.distributed.ranks import Ranks

STEPS = 4


class _Model(Energy):
    def __init__(self, order="first", *, inside=False, width=8, norm=False, unused=False):
        super().__init__(order, inside=inside)
        torch.manual_seed(0)
        normed = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.layers = nn.Sequential(
            *(nn.Linear(3, width), normed, nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, 1),
        )
        self.extra = nn.Linear(4, 4) if unused else None


# DDP looks at the names of torch's own hooks, and asks for a GPU.
def _compressed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return default_hooks.bf16_compress_hook(state, bucket)


def _compress(model) -> None:
    model.register_comm_hook(None, _compressed)


def _project(model) -> None:
    """Exact, since the gradients of few samples have a small rank."""
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=2
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    model.projected = state


@dataclass(frozen=True)
class _Option:
    """What DDP is asked for, and what the model has.

    Attributes:
        given: To ``DistributedDataParallel``.
        made: To the model.
        prepare: Called with the wrapped model.
        passes: How many of each step; only the last is reduced.
        size: Of a batch.
        uneven: Rank 1 has half of the steps.
        tolerance: Of gradients, relative and absolute.
    """

    given: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    prepare: Any = lambda model: None
    passes: int = 1
    size: int = 4
    uneven: bool = False
    tolerance: tuple[float, float] = (1e-3, 1e-5)


_UNUSED = {"given": {"find_unused_parameters": True}, "made": {"unused": True}}
_VIEW = {"gradient_as_bucket_view": True}

OPTIONS = {
    "small buckets": _Option(given={"bucket_cap_mb": 0.0001}),
    "unused": _Option(**_UNUSED),
    "no_sync, bucket view": _Option(given=_VIEW, passes=2),
    "no_sync, unused": _Option(**_UNUSED, passes=3),
    "compressed": _Option(prepare=_compress, tolerance=(1e-2, 1e-3)),
    "compressed, no_sync": _Option(prepare=_compress, passes=2, tolerance=(1e-2, 1e-3)),
    "PowerSGD": _Option(prepare=_project, made={"width": 64}, size=2),
    "buffers": _Option(made={"norm": True}),
    "buffers, no_sync": _Option(made={"norm": True}, passes=2),
    "join": _Option(uneven=True),
    "join, unused": _Option(**_UNUSED, uneven=True),
    "join, buffers": _Option(made={"norm": True}, uneven=True),
}


def _batch(option: _Option, step: int, index: int, rank: int):
    if option.uneven and rank == 1 and step >= STEPS // 2:
        return None
    return batch(option.passes * step + index, rank, option.size)


def _of_one_process(option: _Option, order: str):
    """The gradients of each step, and the buffers in the end, on the batches of all ranks."""
    ranks = dist.get_world_size()
    model = _Model(order, **option.made)
    parameters, buffers = list(model.parameters()), list(model.buffers())
    optimizer = torch.optim.SGD(parameters, 0.05)
    found = []
    for step in range(STEPS):
        total: list[Any] = [None] * len(parameters)
        for index in range(option.passes):
            before = [buffer.clone() for buffer in buffers]
            # The next buffers are those of rank 0, or of the last rank that is still in a join.
            of_last = option.uneven and step + 1 < STEPS // 2
            for rank in range(ranks) if of_last else reversed(range(ranks)):
                for buffer, value in zip(buffers, before, strict=True):
                    buffer.copy_(value)
                given = _batch(option, step, index, rank)
                if given is None:
                    continue
                loss = loss_of(model, order, *given) / ranks
                grads = torch.autograd.grad(loss, parameters, allow_unused=True)
                total = [
                    old if new is None else new if old is None else old + new
                    for old, new in zip(total, grads, strict=True)
                ]
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        found.append(total)
        optimizer.step()
        optimizer.zero_grad()
    return found, buffers


def _train(model, option: _Option, order: str, inside: bool) -> list[list[Any]]:
    rank, found = dist.get_rank(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    option.prepare(model)
    with model.join() if option.uneven else contextlib.nullcontext():
        for step in range(STEPS):
            given = [_batch(option, step, index, rank) for index in range(option.passes)]
            if given[0] is None:
                continue
            for each in given:
                last = each is given[-1]
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = model(*each) if inside else loss_of(model, order, *each)
                    loss.backward()
            found.append([p.grad if p.grad is None else p.grad.clone() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    return found


def _compiled(module, before: bool, given: dict[str, Any]):
    backend = chosen.backend
    if before:
        return DistributedDataParallel(funcaot.compile(module, backend=backend), **given)
    return funcaot.compile(DistributedDataParallel(module, **given), backend=backend)


def _cells(name: str) -> None:
    option = OPTIONS[name]
    for order in ORDERS:
        expected, buffers = _of_one_process(option, order)
        for before in (False, True):
            for inside in (False, True):
                module = _Model(order, inside=inside, **option.made)
                model = _compiled(module, before, option.given)
                found = _train(model, option, order, inside)
                cell = f"{name}, {order}, before={before}, inside={inside}"
                rtol, atol = option.tolerance
                said = lambda message, cell=cell: f"{cell}: {message}"  # noqa: E731
                torch.testing.assert_close(
                    found, expected[: len(found)], rtol=rtol, atol=atol, msg=said
                )
                if dist.get_rank() == 0:
                    torch.testing.assert_close(list(module.buffers()), buffers, msg=said)
                if option.prepare is _project:
                    state = model.projected
                    sent, all_of_it = (
                        state.total_numel_after_compression,
                        state.total_numel_before_compression,
                    )
                    assert 0 < sent < all_of_it / 1.5, cell


_LONG = ("no_sync, unused", "compressed, no_sync", "buffers, no_sync", "join, unused")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in _LONG)) for name in OPTIONS],
)
def test_as_in_one_process(ranks: Ranks, name):
    ranks.run(_cells, name, deadline=200)


def _forces_alone() -> None:
    """The last bias has no gradient; its reduction is started nonetheless."""
    plain = _Model()
    for before in (False, True):
        model = _compiled(_Model(), before, {})
        for step in range(3):
            found = []
            for each, ranks in ((plain, (0, 1)), (model, (dist.get_rank(),))):
                each.zero_grad()
                for rank in ranks:
                    x, _, forces = batch(step, rank)
                    x.requires_grad_()
                    energy = each(x).sum()
                    (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
                    (((gradient + forces) ** 2).mean() / len(ranks)).backward()
                found.append([p.grad for p in each.parameters()])
            *expected, bias = found[0]
            assert bias is None
            assert not found[1].pop().any()
            torch.testing.assert_close(found[1], expected, rtol=1e-4, atol=1e-6)


def test_a_loss_of_forces_alone(ranks: Ranks):
    ranks.run(_forces_alone)


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, *, x):
        return {"first": self.first(x).tanh(), "rest": [self.second(x).sin()]}


def _two_results(model, step: int) -> torch.Tensor:
    found = model(x=batch(step, dist.get_rank())[0])
    value = found["first"].sum()
    return value if step % 2 else value + found["rest"][0].square().sum()


def _two_calls(model, step: int) -> torch.Tensor:
    x, _, _ = batch(step, dist.get_rank())
    return model(x).square().sum() + model(x * 2).sum()


def _after_evaluation(model, step: int) -> torch.Tensor:
    x, _, _ = batch(step, dist.get_rank())
    model.eval()
    with torch.no_grad():
        value = model(x).mean()
    model.train()
    return model(x).square().sum() * value


def _third_order(model, step: int) -> torch.Tensor:
    x = batch(step, dist.get_rank())[0].requires_grad_()
    energy = model(x).sum()
    (first,) = torch.autograd.grad(energy, x, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), x, create_graph=True)
    return (second**2).sum() + 0 * energy


def _under_autocast(model, step: int) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(batch(step, dist.get_rank())[0]).float().square().sum()


LOSSES = {
    "two results": (_two_results, _Two, {"find_unused_parameters": True}),
    "two calls": (_two_calls, _Model, {}),
    "two calls, unused": (_two_calls, _Model, {"find_unused_parameters": True}),
    "evaluated": (_after_evaluation, lambda: _Model(norm=True), {}),
    "third order": (_third_order, _Model, {}),
    "autocast": (_under_autocast, _Model, {}),
}


def _as_in_eager(name: str) -> None:
    loss, make, given = LOSSES[name]
    found = []
    for wrap in (
        lambda module: DistributedDataParallel(module, **given),
        lambda module: _compiled(module, False, given),
        lambda module: _compiled(module, True, given),
    ):
        model = wrap(make())
        found.append([])
        for step in range(3):
            model.zero_grad()
            loss(model, step).backward()
            found[-1].append(
                [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
            )
    rtol, atol = (2e-2, 1e-3) if name == "autocast" else (1e-3, 1e-5)
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", LOSSES)
def test_as_in_eager(ranks: Ranks, name):
    ranks.run(_as_in_eager, name)


def _copies() -> None:
    """A copy has parameters and a reducer of its own."""
    expected, _ = _of_one_process(_Option(), "forces")
    for before in (False, True):
        model = _compiled(_Model("forces"), before, {})
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for made in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            found = _train(made, _Option(), "forces", inside=False)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        assert all(parameter.grad is None for parameter in model.parameters())


def test_copies(ranks: Ranks):
    ranks.run(_copies)


def _refusals() -> None:
    module = _Model()
    weight = module.layers[3].weight
    delayed = {
        "delay_all_reduce_named_params": [("layers.3.weight", weight)],
        "param_to_hook_all_reduce": module.layers[0].weight,
    }
    with pytest.raises(funcaot.errors.UnsupportedError, match="delay_all_reduce_named_params"):
        _compiled(module, False, delayed)
    model = _compiled(module, True, delayed)
    with pytest.raises(funcaot.errors.UnsupportedError, match="delay_all_reduce_named_params"):
        model(torch.ones(2, 3))
    # Torch has it on GPUs only, and says so in each of the orders.
    for before in (False, True):
        synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(_Model(norm=True))
        with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
            _compiled(synchronized, before, {})(torch.ones(2, 3))


def test_refusals(ranks: Ranks):
    ranks.run(_refusals)
