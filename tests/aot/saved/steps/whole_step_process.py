"""A process that trains, with programs that it saves or that another one has saved."""

import sys

import torch
from torch import nn

import funcaot

optimizer, backend, path, what = sys.argv[1:]


def training():
    """A network, and a step of its training."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    adapts = getattr(torch.optim, optimizer)(network.parameters(), lr=0.05)

    def step(x, t):
        adapts.zero_grad()
        loss = (network(x) - t).square().mean()
        loss.backward()
        adapts.step()
        return loss.detach()

    # What a checkpoint would bring: the state of the optimizer, and gradients.
    x, t = torch.ones(5, 3), torch.zeros(5, 1)
    step(x, t)
    return network, step


def trained(network, step):
    """Losses and parameters of some steps."""
    torch.manual_seed(1)
    losses = [step(torch.randn(5, 3), torch.randn(5, 1)) for _ in range(4)]
    return losses, [p.detach().clone() for p in network.parameters()]


network, step = training()
compiled = funcaot.compile(step, backend=backend, artifacts=path if what == "loads" else None)
found = trained(network, compiled)
torch.testing.assert_close(found, trained(*training()))
report = funcaot.report(compiled)
if what == "saves":
    saved = compiled.save(path)
    assert saved.programs, saved
    assert not saved.left_out, saved
print(f"{report.cache_misses} misses, {report.graphs_compiled} graphs, as eager")
