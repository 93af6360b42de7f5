"""What happens between the steps of a training by DistributedDataParallel, against eager DDP."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import funcaot
from tests.distributed.cases import Energy, batch, chosen
from tests.distributed.ranks import Ranks


class _Branches(Energy):
    """One rank may use a layer that the others don't."""

    def __init__(self):
        super().__init__()
        self.extra, self.uses_extra = nn.Linear(3, 1), False

    def forward(self, x):
        return super().forward(x) + (self.extra(x).sum(1) if self.uses_extra else 0)


def _step(model, optimizer, step, size=4):
    optimizer.zero_grad()
    x, energies, forces = batch(step, dist.get_rank(), size)
    # Means of no rows are NaN.
    x = x.requires_grad_()
    energy = model(x)
    (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    ((energy - energies).square().sum() + (gradient + forces).square().sum()).backward()
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return found


def _sgd(model):
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)


def _no_rows(wrap):
    model = wrap(Energy())
    sizes = ((4, 0), (4, 4), (0, 3), (0, 0), (5, 1))
    optimizer = _sgd(model)
    return [_step(model, optimizer, i, each[dist.get_rank()]) for i, each in enumerate(sizes)]


def _unused_on_one(wrap):
    module = _Branches()
    model = wrap(module, find_unused_parameters=True)
    optimizer, found = _sgd(model), []
    for step in range(4):
        module.uses_extra = dist.get_rank() == 1 and step % 2 == 0
        found.append(_step(model, optimizer, step))
    return found


def _other_groups(wrap):
    both, alone = dist.new_group([0, 1]), [dist.new_group([rank]) for rank in (0, 1)]
    found = []
    for group in (both, alone[dist.get_rank()]):
        model = wrap(Energy(), process_group=group)
        optimizer = _sgd(model)
        found += [_step(model, optimizer, step) for step in range(2)]
    return found


def _frozen_for_a_while(wrap):
    module = Energy()
    model = wrap(module, find_unused_parameters=True)
    optimizer, found = _sgd(model), []
    for step, trained in enumerate((True, True, False, False, True)):
        module.layers[2].requires_grad_(trained)
        found.append(_step(model, optimizer, step))
    return found


def _loaded(wrap):
    model = wrap(Energy())
    optimizer = _sgd(model)
    found = [_step(model, optimizer, 0)]
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    found.append(_step(model, optimizer, 1))
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    return [*found, *[_step(model, optimizer, step) for step in (2, 3)]]


def _moments_on_one_rank(wrap):
    # Its module warns of TorchScript, which pytest would make an error.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = wrap(Energy())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return [_step(model, optimizer, step) for step in range(3)]


def _averaged(wrap):
    model = wrap(Energy())
    optimizer, found = _sgd(model), []
    average = torch.optim.swa_utils.AveragedModel(model)
    for step in range(3):
        found.append(_step(model, optimizer, step))
        average.update_parameters(model)
        with torch.no_grad():
            found.append([average(batch(step, 0)[0])])
    return found


class _Heads(Energy):
    """One of two heads by turns, and a layer that one of them uses."""

    def __init__(self):
        super().__init__()
        self.shared, self.other, self.turn = nn.Linear(3, 3), nn.Linear(3, 1), 0

    def forward(self, x):
        if self.turn % 2:
            return self.other(x).sin().sum(1)
        return super().forward(self.shared(x).tanh())


def _heads_by_turns(wrap):
    module, found = _Heads(), []
    model = wrap(module, find_unused_parameters=True, gradient_as_bucket_view=True)
    optimizer = _sgd(model)
    for step in range(6):
        module.turn = step // 2 + dist.get_rank() * (step < 4)
        found.append(_step(model, optimizer, step))
    return found


class _Counts(Energy):
    """Buffers that forward changes by what a rank sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.scale = self.scale * 0.5 + x.detach().std()
        return super().forward(x - self.mean) * self.scale


def _changed_buffers(wrap):
    found = []
    for broadcast in (True, False):
        module = _Counts()
        model = wrap(module, broadcast_buffers=broadcast)
        optimizer = _sgd(model)
        for step in range(3):
            found += [_step(model, optimizer, step), [module.mean.clone(), module.scale.clone()]]
    return found


def _micro_batches(wrap):
    """Accumulated over batches of different sizes, of which the last is reduced."""
    model = wrap(Energy())
    found = []
    for step in range(2):
        model.zero_grad()
        for index in range(3):
            with contextlib.nullcontext() if index == 2 else model.no_sync():
                size = 2 + 3 * index + dist.get_rank()
                _step(model, _Nothing(), 3 * step + index, size)
        found.append([p.grad.clone() for p in model.parameters()])
    return found


class _Nothing:
    """An optimizer that changes nothing."""

    def zero_grad(self) -> None:
        """Gradients stay."""

    step = zero_grad


class _Fails(Energy):
    failing = False

    def forward(self, x):
        result = super().forward(x)
        if self.failing:
            raise ValueError("in the middle of a step")
        return result


def _error_in_a_step(wrap):
    """In the forward of all ranks, and between a forward and its backward."""
    module = _Fails()
    model = wrap(module)
    optimizer = _sgd(model)
    found = [_step(model, optimizer, step) for step in range(2)]
    module.failing = True
    with pytest.raises(ValueError, match="in the middle"):
        _step(model, optimizer, 2)
    module.failing = False
    found.append(_step(model, optimizer, 3))
    return [*found, _step(model, optimizer, 4)]


SITUATIONS = {
    "heads by turns": _heads_by_turns,
    "changed buffers": _changed_buffers,
    "micro batches": _micro_batches,
    "error in a step": _error_in_a_step,
    "no rows": _no_rows,
    "unused on one rank": _unused_on_one,
    "other groups": _other_groups,
    "frozen for a while": _frozen_for_a_while,
    "loaded": _loaded,
    "moments on one rank": _moments_on_one_rank,
    "averaged": _averaged,
}


def _as_in_eager(name: str) -> None:
    compiled = lambda module: funcaot.compile(module, backend=chosen.backend)  # noqa: E731
    ways = (
        DistributedDataParallel,
        lambda module, **given: compiled(DistributedDataParallel(module, **given)),
        lambda module, **given: DistributedDataParallel(compiled(module), **given),
    )
    expected, *others = [SITUATIONS[name](way) for way in ways]
    for found in others:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name != "unused on one rank"))
        for name in SITUATIONS
    ],
)
def test_as_eager_ddp(ranks: Ranks, name):
    ranks.run(_as_in_eager, name, deadline=200)
