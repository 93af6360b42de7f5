"""Scripted and traced code inside a compiled function, at two orders.

The oracle is TorchScript's own interpreter.
"""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.trace\\w*. is deprecated:FutureWarning"),
]


class Straight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return self.inner(x + self.shift)


class Controlled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.count = 2

    def forward(self, x):
        found = torch.jit.annotate(list[torch.Tensor], [])
        for index in range(self.count):
            x = torch.tanh(x * self.w + index)
            found.append(x)
        first, second = torch.cat(found, 0).chunk(2)
        if x.dim() > 1:
            first = first + second[:, :1].sum(dim=1, keepdim=True)
        else:
            first = first - second
        first.mul_(2.0)
        return first / x.size(0)

    @torch.jit.export
    def scaled(self, x, factor: float = 2.0):
        return x.sin() * self.w * factor


def repeated(x, count: int):
    y = x
    for index in range(count):
        y = y * x.sin() if index % 2 == 0 else y + x.size(0)
    return y


def halved(x):
    return x / 2


def forked(x):
    return torch.jit.wait(torch.jit.fork(halved, x))


def scripted(thing):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(thing)


def traced(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(module, torch.ones(2, 3))


CASES = {
    "module": lambda: scripted(Straight()),
    "control flow": lambda: scripted(Controlled()),
    "method": lambda: (lambda m: lambda x: m.scaled(x, factor=3.0))(scripted(Controlled())),
    "traced": lambda: traced(Straight()),
    "function": lambda: (lambda f: lambda x: f(x, 3))(scripted(repeated)),
    "inside a module": lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), scripted(Straight())),
}


def derivatives(function, x, parameters):
    value = function(x)
    first = torch.autograd.grad(value.pow(2).sum(), [x, *parameters], create_graph=True)
    (second,) = torch.autograd.grad(first[0].pow(2).sum(), x)
    return [value, *first, second]


@pytest.mark.parametrize("case", CASES)
def test_scripted_code_is_run_op_by_op(case):
    torch.manual_seed(0)
    function = CASES[case]()
    parameters = [*getattr(function, "parameters", list)()]
    compiled = funcaot.compile(function, backend="eager")
    for size in (4, 4, 6, 8):
        x = torch.randn(size, 3, requires_grad=True)
        expected = derivatives(function, x, parameters)
        found = derivatives(compiled, x, parameters)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert funcaot.report(compiled).cache_misses == 2


def test_parameters_of_a_scripted_module_are_trained():
    torch.manual_seed(0)
    plain, module = scripted(Straight()), scripted(Straight())
    module.load_state_dict(plain.state_dict())
    compiled = funcaot.compile(lambda x: module(x), backend="eager")
    x = torch.randn(4, 3)
    for function, parts in ((plain, plain), (compiled, module)):
        optimizer = torch.optim.SGD(parts.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            function(x).pow(2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(module.state_dict(), plain.state_dict())


def test_training_mode_of_a_scripted_module_is_compared():
    module = scripted(torch.nn.Sequential(torch.nn.Dropout(1.0)))
    compiled = funcaot.compile(lambda x: module(x), backend="eager")
    assert not compiled(torch.ones(3)).any()
    module.eval()
    assert compiled(torch.ones(3)).all()


def test_torchscript_runs_by_itself_outside():
    function = scripted(repeated)
    funcaot.compile(lambda x: function(x, 2), backend="eager")(torch.ones(2))
    assert torch.equal(function(torch.ones(2), 2), repeated(torch.ones(2), 2))


def test_an_unknown_operation_is_refused_by_name():
    function = scripted(forked)
    del function._torchdynamo_inline
    with pytest.raises(UnsupportedError, match="prim::fork"):
        funcaot.compile(lambda x: function(x), backend="eager")(torch.ones(2))
