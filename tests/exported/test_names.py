"""Names of what an exported function closes over: those of a state_dict, or of the variables."""

import functools

import pytest
import torch

from funcaot.exported.names import tensor_names

SHIFT = torch.ones(2)
TABLE = {"first": torch.ones(2), "rows": [torch.ones(1)]}
NETWORK = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.BatchNorm1d(2)))


class Stepping:
    def __init__(self):
        self.scale = torch.ones(2)
        self.net = NETWORK

    def step(self, x):
        return self.net(x) * self.scale


def shifted(x):
    return NETWORK(x) * SHIFT * TABLE["first"] * TABLE["rows"][0]


def closing(scale):
    return lambda x: x * scale


STATE = [*NETWORK.state_dict()]
TENSORS = [*NETWORK.parameters(), *NETWORK.buffers()]
STEPPING = Stepping()


@pytest.mark.parametrize("function", [NETWORK, NETWORK.forward], ids=["module", "method"])
def test_those_of_a_module_are_its_state_dicts(function):
    assert [*tensor_names(function, TENSORS)] == STATE


@pytest.mark.parametrize(
    ("function", "tensors", "names"),
    [
        (shifted, [SHIFT, TABLE["first"]], ("SHIFT", "TABLE.first")),
        (shifted, [TABLE["rows"][0], TENSORS[0]], ("TABLE.rows.0", "NETWORK.0.weight")),
        (closing(SHIFT), [SHIFT], ("scale",)),
        (STEPPING.step, [STEPPING.scale, TENSORS[1]], ("scale", "net.0.bias")),
        (functools.partial(shifted, 3), [SHIFT], ("SHIFT",)),
        (torch.no_grad()(shifted), [SHIFT], ("SHIFT",)),
        (shifted, [torch.zeros(1), SHIFT, SHIFT], ("tensor_0", "SHIFT", "SHIFT_2")),
    ],
    ids=["globals", "containers", "closure", "object", "partial", "decorated", "unknown"],
)
def test_those_of_code_begin_with_the_variable(function, tensors, names):
    assert tensor_names(function, tensors) == names
