"""Hooks of a backward inside of a compiled step read addresses and lists, as in eager.

BackPACK keeps what it computes by the address of a module's result. The oracle is the step itself.
"""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


def store(module, args, result):
    module.result = result


def network(hook):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    for layer in (model[0], model[2]):
        layer.register_forward_hook(store)
        layer.register_full_backward_hook(hook)
    return model


def by_address():
    kept = {}

    def hook(module, grad_inputs, grad_results):
        address = module.result.data_ptr()
        module.weight.found = grad_results[0] * kept.setdefault(address, 2)
        del kept[address], module.result

    return hook


def by_list():
    def hook(module, grad_inputs, grad_results):
        signs = (module.result[0] > 0).to(torch.int64).tolist()
        module.weight.found = grad_results[0] * len(signs) + sum(signs)
        del module.result

    return hook


def made(make_hook):
    model = network(make_hook())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach(), [model[at].weight.found.clone() for at in (0, 2)]

    return step


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("make_hook", [by_address, by_list])
def test_a_step_with_such_hooks(make_hook):
    expected, step = made(make_hook), made(make_hook)
    compiled = funcaot.compile(step, backend="eager")
    for seed in range(4):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), expected(x))
    assert len(compiled.entries) >= 1


def test_the_model_alone_is_refused_with_what_to_do():
    compiled = funcaot.compile(network(by_address()), backend="eager")
    with pytest.raises(UnsupportedError, match=r"(?s)full backward hook.*a whole training step"):
        compiled(torch.ones(2, 4))
