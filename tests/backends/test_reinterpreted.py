"""Results whose layout or place Inductor would choose: views of them, positions, noise."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot


def last_dimension(x, w):
    return torch.view_as_complex(F.conv2d(x, w).unflatten(-1, (-1, 2))).abs().sum()


def channels(x, w):
    pairs = F.conv2d(x, w).unflatten(1, (-1, 2)).movedim(2, -1)
    return torch.view_as_complex(pairs.contiguous()).abs().pow(2).sum()


def transposed(x, w):
    return (
        torch.view_as_complex(F.conv_transpose2d(x, w)[..., :6].unflatten(-1, (-1, 2))).abs().sum()
    )


def back_and_forth(x, w):
    pairs = torch.view_as_real(torch.view_as_complex(F.conv2d(x, w).unflatten(-1, (-1, 2))) * 2j)
    return pairs.pow(3).sum()


FUNCTIONS = [last_dimension, channels, transposed, back_and_forth]


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_two_orders_of_a_view_of_a_convolution(function, dynamic):
    compiled = funcaot.compile(function, dynamic=dynamic)
    for size in (5, 5, 7):
        generator = torch.Generator().manual_seed(size)
        found = []
        for call in (function, compiled):
            generator.manual_seed(size)
            x, w = (
                torch.randn(shape, generator=generator, requires_grad=True)
                for shape in ((2, 4, size, 5), (4, 4, 2, 2))
            )
            loss = call(x, w)
            first = torch.autograd.grad(loss, (x, w), create_graph=True)
            second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, w))
            found.append((loss, *first, *second))
        assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
        assert [g.stride() for g in found[1]] == [g.stride() for g in found[0]]


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_the_parts_of_complex_numbers():
    def function(x, w):
        y = F.conv2d(x, w)
        return torch.complex(y, y * 2).view(torch.float32).sin()

    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 4, 2, 2)
    assert_close(funcaot.compile(function)(x, w), function(x, w))


def convolved(x):
    return F.conv2d(x, torch.ones(4, x.shape[1], 1, 1))


LAYOUTS = {
    "given": lambda x: x,
    "transposed": lambda x: x.transpose(1, 3),
    "computed from transposed": lambda x: x.transpose(0, 2) * 2,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) + 1,
    "transposed inside": lambda x: (x.relu() * 2).permute(3, 1, 0, 2) + 1,
    "sliced": lambda x: x.transpose(1, 2)[::2].relu(),
    "convolved": convolved,
}


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("op", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_of_equal_elements(op, layout, keepdim):
    """In the order of indices, not of memory."""

    def function(x):
        y = LAYOUTS[layout](x)
        flat = op(y.flatten(1), 1)
        return op(y, keepdim=keepdim) if keepdim else op(y), flat, op(y, 2, keepdim=keepdim)

    compiled = funcaot.compile(function)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(-1, 2, (4, 3, 5, 6), generator=generator).float()
        assert_close(compiled(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True])
def test_the_gradient_of_a_randomized_leaky_relu(training):
    compiled = funcaot.compile(lambda x: F.rrelu(x, training=training))
    for seed in range(2):
        x = torch.randn(8, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        result = compiled(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        assert_close(gradient * x, result)
        if not training:
            assert_close(result, F.rrelu(x))
