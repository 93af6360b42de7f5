"""What `vmap`, `grad` and others make inside of a compiled function: tensors without a storage."""

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

INSIDE = {
    "as_strided": lambda x: x.as_strided((2, 2), (2, 1), 1).sin(),
    "as_strided of a result": lambda x: x.cos().as_strided((2, 2), (2, 1), 1),
    "as_strided of a view": lambda x: x[:, 1:].as_strided((2, 2), (1, 3)) * 2,
    "unsqueeze_": lambda x: x.mul(2).unsqueeze_(1) + 1,
    "squeeze_": lambda x: x.mul(2).squeeze_(0).sin(),
    "t_": lambda x: x.mul(2).t_() * 3,
    "transpose_": lambda x: x.mul(2).transpose_(0, 1).cos(),
    "written after unsqueeze_": lambda x: x.mul(2).unsqueeze_(0).mul_(x),
    "swapaxes_ twice": lambda x: x.mul(2).swapaxes_(0, 1).swapaxes_(0, 1) + x,
}
LEVELS = {
    "vmap": vmap,
    "grad": lambda f: grad(lambda x: f(x).square().sum()),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x.sin(),)),
    "vmap of grad": lambda f: vmap(grad(lambda x: f(x).square().sum())),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(x).square().sum()),
    "vmap of the last": lambda f: lambda x: vmap(f, in_dims=-1)(x.movedim(0, -1)),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("name", INSIDE)
def test_shapes_of_what_a_level_made(name, levels):
    function = LEVELS[levels](INSIDE[name])
    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(3):
        x = torch.randn((3, 1, 6) if levels != "grad" and levels != "jvp" else (1, 6))
        expected = function(x.clone())
        assert_close(
            compiled(x.clone()), expected, msg=lambda text, seed=seed: f"call {seed}: {text}"
        )


@pytest.mark.parametrize("method", ["unsqueeze_", "squeeze_"])
def test_an_argument_changes_its_shape_with_its_batch(method):
    def function(x):
        return vmap(lambda row: getattr(row, method)(0) * 2)(x)

    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(3):
        given, other = torch.ones(3, 1, 2), torch.ones(3, 1, 2)
        assert_close(compiled(given), function(other))
        assert given.shape == other.shape


def test_resizing_a_batch_is_refused():
    compiled = funcaot.compile(vmap(lambda x: x.mul(2).resize_(2)), backend="eager")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="resize_ on a tensor that a vmap inside"):
            compiled(torch.ones(3, 4))
    assert torch._C._functorch.peek_interpreter_stack() is None
