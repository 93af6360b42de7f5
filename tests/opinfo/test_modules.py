"""Every module of torch's database, compiled: results, gradients of two orders, statistics."""

import copy
from itertools import zip_longest

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import funcaot
from funcaot._torch.tensors.testing import modules

# A loss of one sample without a reduction: torch's formula for fake tensors adds a dimension.
FAST = {"nn.MultiLabelMarginLoss"}
# Compiled, they have second derivatives that eager lacks.
ONCE = {"nn.MultiLabelMarginLoss", "nn.MultiMarginLoss"}


def pytest_generate_tests(metafunc):
    fast = metafunc.function.__name__ == "test_module"
    found = [module for module in modules() if not fast or module.name in FAST]
    metafunc.parametrize("info", found, ids=lambda info: info.name)


def _fresh(given):
    return tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), given
    )


def _tensors(given):
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def _sums(tensors):
    """Each tensor's sum with other weights for each element."""
    found = [t for t in tensors if t is not None and t.requires_grad]
    return [(t * torch.arange(t.numel(), dtype=t.dtype).cos().view_as(t)).sum() for t in found]


def _outcome(call, module, given, order):
    """Results, gradients up to an order, and what the module keeps; or what eager raises."""
    args, kwargs = given
    torch.manual_seed(0)
    try:
        results = _tensors(call(*args, **kwargs))
        leaves = [t for t in _tensors(([*module.parameters()], given)) if t.requires_grad]
        made = [*results, *module.buffers()]
        for _ in range(order):
            sums = _sums(results)
            if sums:
                results = torch.autograd.grad(sums, leaves, create_graph=True, allow_unused=True)
                made += results
    except Exception as error:  # noqa: BLE001 - it has to be eager's
        return type(error), str(error)[:40]
    return made


def _agree(info, training):
    for number, sample in enumerate(
        info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        )
    ):
        if sample.forward_input is None:
            continue
        torch.manual_seed(0)
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).double().train(training)
        twin = copy.deepcopy(module)
        compiled = funcaot.compile(twin, backend="eager")
        given = sample.forward_input.args, sample.forward_input.kwargs
        for order in (1, 1, 1 if info.name in ONCE else 2):
            expected = _outcome(module, module, _fresh(given), order)
            found = _outcome(compiled, twin, _fresh(given), order)
            if isinstance(expected, tuple):
                assert found == expected, (number, sample.desc)
                continue
            assert isinstance(found, list), (number, sample.desc, found)
            for left, right in zip_longest(found, expected):
                torch.testing.assert_close(left, right, msg=f"{number} {sample.desc}")


@pytest.mark.parametrize("training", [True, False])
def test_module(info, training):
    _agree(info, training)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("training", [True, False])
def test_every_module(info, training):
    _agree(info, training)
