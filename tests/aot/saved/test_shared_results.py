"""Programs from a file whose results share memory: detached losses, views of what was detached."""

import pytest
import torch
from torch import nn

import funcaot
from tests.aot.saved.reloading import is_loaded, misses, reloaded

LOG = []


def logged(x):
    loss = (x * 2).sum()
    LOG.append(loss.detach())
    return loss


def data(x):
    y = x * 2
    return y, y.data


def one_twice(x):
    y = x * 2
    detached = y.detach()
    return y, detached, detached


def views_of_detached(x):
    y = x * 2
    detached = y.detach()
    return detached, detached.t(), detached[0], y


def detached_view(x):
    y = x * 2
    return y[0].detach(), y


def detached_input(x):
    return x.detach(), x[1].detach(), x * 2


def leaf(x):
    return (x * 2).detach().requires_grad_(), x * 3


def parameter(x):
    return nn.Parameter((x * 2).detach()), x * 3


def without_gradient(x):
    y = x * 2
    with torch.no_grad():
        return y, y[0]


def expanded(x):
    y = x.sum()
    return y, y.detach().expand(3)


FUNCTIONS = [
    logged, data, one_twice, views_of_detached, detached_view, detached_input, leaf, parameter,
    without_gradient, expanded,
]  # fmt: skip


def seen(function):
    """All that a caller sees of some calls, with gradients and writes to what came back."""
    torch.manual_seed(0)
    found = []
    for _ in range(3):
        x = torch.randn(4, 4, requires_grad=True)
        LOG.clear()
        made = function(x)
        made = [*(made if isinstance(made, tuple) else (made,)), *LOG]
        memory = [tensor.untyped_storage().data_ptr() for tensor in [x, *made]]
        found.append(
            [
                (
                    t.requires_grad,
                    t.is_leaf,
                    isinstance(t, nn.Parameter),
                    t.stride(),
                    t.storage_offset(),
                )
                for t in made
            ]
        )
        found.append([memory.index(each) for each in memory])
        found.append([[one is other for one in made] for other in made])
        for tensor in made:
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.sum().backward(retain_graph=True)
        found.append((x.grad, [tensor.detach().clone() for tensor in made]))
        with torch.no_grad():
            made[0].add_(1)
        found.append([(t.detach().clone(), t._version) for t in [x, *made]])
    return found


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_results_that_share_memory(function, backend, tmp_path):
    compiled = reloaded(function, seen, tmp_path / "programs", backend=backend)
    torch.testing.assert_close(seen(compiled), seen(function))
    assert is_loaded(compiled)
    assert misses(compiled) == 0
    assert funcaot.report(compiled).backward_traces == 0
