"""Values and gradients of ops of which Inductor once computed others than eager."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot


def leaf(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


RESIZED = [
    {"scale_factor": 1.7},
    {"scale_factor": 0.6},
    {"scale_factor": (1.7, 0.7)},
    {"scale_factor": 2},
    {"scale_factor": 1.3, "recompute_scale_factor": True},
    {"size": (7, 9)},
    {"size": (2, 3)},
]


def resized(x):
    return [F.interpolate(x, mode="nearest", **sizes) for sizes in RESIZED]


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_gradient_of_nearest_pixels_by_any_scale(channels_last):
    x = leaf(2, 3, 4, 5)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = x.detach().to(memory_format=layout).requires_grad_()
    compiled = funcaot.compile(resized)
    for _ in range(2):
        expected, actual = resized(x), compiled(x)
        assert_close(actual, expected)
        for wanted, found in zip(expected, actual, strict=True):
            weights = torch.randn_like(wanted)
            gradients = [
                torch.autograd.grad(y, x, weights, retain_graph=True)[0] for y in (wanted, found)
            ]
            assert_close(*gradients)


EMPTY = {
    "variance": lambda x: torch.var_mean(x),
    "deviation": lambda x: torch.std_mean(x, 0, keepdim=True),
    "of columns": lambda x: torch.var_mean(x, 1),
    "of complex numbers": lambda x: torch.var_mean(x.to(torch.complex128)),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:.*complex operators")
@pytest.mark.parametrize("name", EMPTY)
def test_the_mean_of_nothing_is_nan(name):
    function, x = EMPTY[name], torch.empty(0, 5)
    compiled = funcaot.compile(function)
    for _ in range(2):
        assert_close(compiled(x), function(x), equal_nan=True)


def of_one_number(x):
    every = x.mean().expand(3, 4)
    return torch.expm1(every), torch.atanh(every / 4), torch.acosh(every + 3), F.elu(every, 2.0)


def test_functions_of_one_number_among_many():
    compiled = funcaot.compile(of_one_number)
    for _ in range(2):
        x = torch.rand(2, 3)
        assert_close(compiled(x), of_one_number(x))


def sums_of_a_constant(x):
    full = torch.full_like(x, 0.1)
    ones = torch.ones_like(x[0, 0])
    numbers = [ones.cumsum(0), ones.cumsum(-1, dtype=torch.float64), (ones > 0).cumsum(0)]
    lines = [full.cumsum(0), full.cumsum(1, dtype=torch.float64), x.cumsum(0, dtype=torch.float64)]
    return numbers + lines


def test_the_dtype_of_a_cumulative_sum():
    compiled = funcaot.compile(sums_of_a_constant)
    for _ in range(2):
        x = torch.randn(3, 4)
        assert_close(compiled(x), sums_of_a_constant(x))


def scaled_sums(x, y, ints):
    return [
        torch.add(x @ y, x, alpha=0.5),
        torch.add(x, x @ y, alpha=0.5),
        torch.add(x @ y, y[0], alpha=-2),
        torch.add(x @ y, y @ x, alpha=0.25),
        torch.sub(x @ y, x, alpha=0.5),
        (y @ x).add_(x.float(), alpha=0.5),
        torch.add(ints @ ints, ints, alpha=3),
        torch.add(x.float(), x, alpha=0.1),
        torch.add(x, ints, alpha=0.5),
        torch.add(x, 2, alpha=0.5),
    ]


def test_sums_with_products_keep_their_scale():
    compiled = funcaot.compile(scaled_sums)
    for _ in range(2):
        x, y, ints = leaf(4, 4), leaf(4, 4), torch.randint(9, (4, 4))
        expected, actual = scaled_sums(x, y, ints), compiled(x, y, ints)
        assert_close(actual, expected)
        gradients = [
            torch.autograd.grad(sum(r.sum() for r in made if r.requires_grad), [x, y])
            for made in (expected, actual)
        ]
        assert_close(*gradients)


def permuted(x, order):
    """The same elements with dimensions that lie in memory in another order."""
    back = [order.index(dim) for dim in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


POOLS = {
    "large windows": (lambda x: F.max_pool2d(x, 5, 1, return_indices=True), (2, 3, 9, 9)),
    "over the edge": (
        lambda x: F.max_pool3d(x, 3, 2, padding=1, ceil_mode=True, return_indices=True),
        (1, 2, 3, 6, 5),
    ),
    "volumes": (lambda x: F.max_pool3d(x, 2, return_indices=True), (1, 2, 4, 6, 6)),
    "to a size": (lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True), (1, 2, 4, 6, 6)),
}


@pytest.mark.parametrize("name", POOLS)
def test_maxima_of_pixels_in_any_layout(name):
    """The gradient went to other pixels, or beyond the memory."""
    function, shape = POOLS[name]
    dims = list(range(len(shape)))
    layouts = [dims, dims[::-1], [0, *dims[2:], 1], [dims[-1], *dims[:-1]]]

    def pools(*inputs):
        return [function(x) for x in inputs]

    compiled = funcaot.compile(pools)
    for _ in range(2):
        inputs = [permuted(torch.randn(shape), order).requires_grad_() for order in layouts]
        expected, actual = pools(*inputs), compiled(*inputs)
        assert_close(actual, expected)
        weights = torch.randn_like(expected[0][0])
        gradients = [
            torch.autograd.grad([made for made, _ in results], inputs, [weights] * len(layouts))
            for results in (expected, actual)
        ]
        assert_close(*gradients)


def averaged(x):
    return F.avg_pool2d(x, (4,), (2,), (2,), ceil_mode=True)


def test_one_size_for_both_dimensions():
    compiled = funcaot.compile(averaged)
    for _ in range(2):
        x = leaf(1, 2, 6, 6)
        expected, actual = averaged(x), compiled(x)
        assert_close(actual, expected)
        assert_close(*(torch.autograd.grad(y.sin().sum(), x) for y in (expected, actual)))


def truncated(x, y):
    return torch.div(x, y, rounding_mode="trunc")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=str)
def test_whole_numbers_divided_towards_zero(dtype):
    """By zero it is an error, and not the end of the process."""
    compiled = funcaot.compile(truncated)
    x = torch.tensor([7, -7, 5, 0, -9, -1] * 6).to(dtype)
    y = torch.tensor([2, 3, -3, 5, -4, 2] * 6).to(dtype)
    assert_close(compiled(x, y), truncated(x, y))
    y[4] = 0
    for function in (truncated, compiled):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(x, y)


def means_of_windows(x, cube):
    options = {"kernel_size": 2, "ceil_mode": True}
    flat = torch.nn.functional.avg_pool2d(x, **options).square().sum()
    padded = torch.nn.functional.avg_pool2d(x, 3, 2, padding=1, ceil_mode=True).square().sum()
    return flat + padded + torch.nn.functional.avg_pool3d(cube, **options).square().sum()


def test_gradients_of_means_where_the_last_window_is_cut_off():
    """Such a mean is that of the elements that there are, and so is its gradient."""
    inputs = [leaf(1, 2, 5, 6), leaf(1, 1, 5, 4, 5)]
    expected = torch.autograd.grad(means_of_windows(*inputs), inputs)
    result = torch.autograd.grad(funcaot.compile(means_of_windows)(*inputs), inputs)
    torch.testing.assert_close(result, expected)


def reduced_to_extremes(x):
    rows = x.view(2, 37)
    found = [rows.amax(), rows.amin(1), *rows.max(1), *rows.min(0), x.max(), x.min()]
    return [*found, *torch.aminmax(rows, dim=1)]


def reduced_to_places(x):
    rows = x.view(2, 37)
    return [x.argmax(), x.argmin(), rows.argmax(1), rows.argmin(1, keepdim=True)]


def reduced_to_sums(x):
    rows, dtype = x.view(2, 37), x.dtype
    sums = [x.sum(), x.sum(dtype=dtype), rows.sum(1, dtype=dtype), rows.prod(1, dtype=dtype)]
    return [*sums, x.any(), rows.any(1), rows.all(1), x.sum(dtype=torch.bool)]


def reduced(x):
    found = reduced_to_extremes(x) + reduced_to_sums(x)
    return found if x.dtype is torch.bool else found + reduced_to_places(x)


def some_reduced(bytes_, marks):
    extremes = bytes_.amax(), bytes_.argmin(), marks.min(0)
    return *extremes, bytes_.any(0), bytes_.sum(dtype=torch.uint8)


def test_some_bytes_are_reduced_without_what_lies_beside_them():
    """Few of them don't fill a vector, of which all was reduced."""
    inputs = torch.zeros(37, dtype=torch.uint8), torch.arange(37) != 5
    assert_close(funcaot.compile(some_reduced)(*inputs), some_reduced(*inputs), rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool], ids=str)
def test_bytes_are_reduced_without_what_lies_beside_them(dtype):
    compiled = funcaot.compile(reduced)
    lowest = 0 if dtype is torch.bool else torch.iinfo(dtype).min
    for numbers in (torch.arange(74) * 7 % 256, torch.full((74,), lowest), torch.arange(74) != 5):
        x = numbers.to(dtype)
        assert_close(compiled(x), reduced(x), rtol=0, atol=0)
    if dtype is torch.int8:
        operands = x.view(2, 37), x[:37]
        assert_close(funcaot.compile(torch.mv)(*operands), torch.mv(*operands), rtol=0, atol=0)
