"""A view that the function wrote to, once the caller writes to its base: gradients as in eager."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

VIEWS = {
    "strided": lambda base: base.as_strided((1, 4), (4, 1), 5),
    "sliced": lambda base: base[5:9].view(1, 4),
}
CHANGES = {
    "nothing": lambda x: x,
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "twice": lambda x: x.t_().unsqueeze_(0),
}
WRITES = {
    "nothing": lambda x: x,
    "mul_": lambda x: x.mul_(1.7),
    "copy_": lambda x: x.copy_(x * 2),
    "twice": lambda x: x.mul_(2).sin_(),
    "by a view": lambda x: x.view_as(x).mul_(3) * 1,
}
LATER = {
    "base": lambda base, x: base.mul_(1.5),
    "view": lambda base, x: x.mul_(1.5),
    "another view": lambda base, x: base[4:7].mul_(1.5),
    "several times": lambda base, x: (base.mul_(1.5), x.add_(1), base.sin_()),
}


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_gradients(view, change, write, backend):
    def function(x):
        CHANGES[change](x)
        WRITES[write](x)
        return x

    compiled = funcaot.compile(function, backend=backend)
    for later in LATER.values():
        found = []
        for call in (function, compiled):
            leaf = torch.arange(12.0, dtype=torch.float64).requires_grad_()
            base = leaf * 2
            x = VIEWS[view](base)
            result = call(x)
            later(base, x)
            weights = torch.arange(1.0, 5.0).view(x.shape)
            results = ((result * weights).sum(), (x * weights).sum(), (base * base.detach()).sum())
            found.append(
                [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in results]
            )
        torch.testing.assert_close(*found)
