"""A mode of the user's around a call: what a call writes to is counted as in eager."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import funcaot


class Looking(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("second", torch.zeros(3))

    def forward(self, x):
        self.first += x
        self.second.add_(x).mul_(2)
        return self.first * self.second


@pytest.mark.parametrize("make", [Counting, lambda: nn.BatchNorm1d(3)], ids=["plain", "norm"])
def test_versions_under_a_dispatch_mode(make):
    """One op for all buffers counts nothing below a mode."""
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        network = make()
        target = funcaot.compile(network, backend="eager") if compiles else network
        with Looking():
            results = [target(torch.rand(2, 3) if make is not Counting else torch.rand(3))]
            results += [target(torch.rand(2, 3) if make is not Counting else torch.rand(3))]
        versions = [buffer._version for buffer in network.buffers()]
        found.append((results, versions, dict(network.state_dict())))
    theirs, ours = found
    torch.testing.assert_close(ours, theirs)
