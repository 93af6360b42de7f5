"""NaN, infinities, zeros of both signs and tiny numbers on the default backend."""

import math

import pytest
import torch
import torch.nn.functional as F

import funcaot

NAN, INF = math.nan, math.inf
LARGEST = torch.finfo(torch.float32).max
NUMBERS = [
    *(NAN, INF, -INF, 0.0, -0.0, LARGEST, -LARGEST, 1e-39, -1e-39, 1e-8, -1e-8, 1e-4, -1e-4),
    *(0.1, -0.1, 0.5, -0.5, 1.0, -1.0, 2.0, -2.5, 3.0, -7.0, 1e4, -1e10, 40.0),
]


def assert_same(found, expected):
    """Equal in values, in the places of NaN and in the signs of zeros."""
    assert found.dtype == expected.dtype
    for take in (lambda x: x.isnan(), lambda x: x.nan_to_num(), lambda x: _signs(x)):
        assert torch.equal(take(found), take(expected))


def _signs(x):
    parts = torch.view_as_real(x) if x.is_complex() else x
    return (parts.isnan() | parts.signbit()) if parts.is_floating_point() else parts


def assert_near(found, expected):
    """Equal but for rounding of the last bits, relative also where numbers are tiny."""
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    zeros = expected == 0
    assert torch.equal(found[zeros].signbit(), expected[zeros].signbit())


def pairs(dtype=torch.float32):
    values = torch.tensor(NUMBERS, dtype=dtype)
    return [grid.contiguous() for grid in torch.meshgrid(values, values, indexing="ij")]


EXACT = {
    "x * 0": lambda x, y: x * 0,
    "0 * x": lambda x, y: 0 * x + y,
    "x * False": lambda x, y: x * False,
    "sum of x * 0": lambda x, y: (x * 0).sum(),
    "0 / x": lambda x, y: 0 / x,
    "remainder": torch.remainder,
    "x % 1": lambda x, y: x % 1,
    "x % -2": lambda x, y: x % -2.0,
    "x % inf": lambda x, y: x % INF,
    "x % 0": lambda x, y: x % 0,
    "3 % x": lambda x, y: 3 % x,
    "floor_divide": torch.floor_divide,
    "div(floor)": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div(trunc)": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "x // 0.1": lambda x, y: x // 0.1,
    "x // inf": lambda x, y: x // INF,
    "x // 0": lambda x, y: x // 0,
    "1 // x": lambda x, y: 1 // x,
    "x ** -0.5": lambda x, y: x**-0.5,
}


def assert_all_same(names, found, expected, compare=assert_same):
    for name, one, other in zip(names, found, expected, strict=True):
        try:
            compare(one, other)
        except AssertionError as error:
            raise AssertionError(name) from error


def test_arithmetic_is_that_of_eager():
    def everything(x, y):
        return [function(x, y) for function in EXACT.values()]

    x, y = pairs()
    compiled = funcaot.compile(everything)
    for one, other in ((x, y), (y, x), (x[:, ::2], y[:, ::2])):
        assert_all_same(EXACT, compiled(one, other), everything(one, other))


def test_arithmetic_of_double_precision_is_that_of_eager():
    def some(x, y):
        return [EXACT[name](x, y) for name in ("x * 0", "remainder", "floor_divide")]

    x, y = pairs(torch.float64)
    for one, other in zip(funcaot.compile(some)(x, y), some(x, y), strict=True):
        assert_same(one, other)


def test_no_times_a_product_is_nothing():
    def scaled(x, matrix, vector):
        return [
            torch.addmv(x, matrix, vector, alpha=0),
            torch.addmv(x[0], matrix, vector, alpha=0, beta=2),
            torch.addmv(x, matrix, vector, alpha=0, beta=0),
            torch.addmv(x, matrix.nan_to_num(), vector, alpha=2, beta=3),
        ]

    matrix = torch.ones(4, 3)
    matrix[1, 1] = NAN
    operands = torch.tensor([1.0, NAN, INF, -2.0]), matrix, torch.arange(3.0)
    for found, expected in zip(funcaot.compile(scaled)(*operands), scaled(*operands), strict=True):
        assert_same(found, expected)


def test_integers_divide_as_before():
    def divided(x):
        return x % 3, x // -2, x.div(2, rounding_mode="floor"), x % 2.5, x // 2.5, 7 % x, x * 0

    x = torch.tensor([-7, -5, -1, 1, 2, 6, 2**40])
    for found, expected in zip(funcaot.compile(divided)(x), divided(x), strict=True):
        assert_same(found, expected)


NEAR = ("acosh", "asinh", "atanh", "expm1", "log1p", "sinh", "tanh")


def test_small_and_large_numbers_keep_their_digits():
    def everything(x):
        return [getattr(torch, name)(x) for name in NEAR] + [F.elu(x), F.selu(x)]

    x = torch.tensor(NUMBERS * 3)
    for found, expected in zip(funcaot.compile(everything)(x), everything(x), strict=True):
        assert_near(found, expected)


GRADIENTS = {
    "x ** 0.5": lambda x: x**0.5,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "hardswish": F.hardswish,
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x.detach().flip(0), reduction="none"),
    "addcmul(value=0)": lambda x: torch.addcmul(x, x, x, value=0),
    "x.mul(0).exp()": lambda x: x.mul(0).exp(),
}


def test_no_nan_of_a_gradient_disappears():
    def everything(*leaves):
        return [function(x) for function, x in zip(GRADIENTS.values(), leaves, strict=True)]

    leaves = [torch.tensor(NUMBERS).repeat(16, 1).requires_grad_() for _ in GRADIENTS]
    found, expected = (
        torch.autograd.grad(sum(result.sum() for result in call(*leaves)), leaves)
        for call in (funcaot.compile(everything), everything)
    )
    assert_all_same(GRADIENTS, found, expected, assert_near)


def test_gradients_of_smooth_losses_stay():
    def loss(x, y):
        return F.smooth_l1_loss(x, y, beta=0.5)

    x = torch.linspace(-2, 2, 41).requires_grad_()
    y = torch.zeros(41)
    found, expected = (
        torch.autograd.grad(call(x, y), x)[0] for call in (funcaot.compile(loss), loss)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_complex_signs_have_eagers_zeros():
    parts = torch.tensor([INF, -INF, 0.0, -0.0, 1.0, -2.5])
    real, imaginary = torch.meshgrid(parts, parts, indexing="ij")
    z = torch.complex(real.contiguous(), imaginary.contiguous())
    found, expected = (call(z) for call in (funcaot.compile(torch.sgn), torch.sgn))
    for part in (0, 1):
        assert_same(torch.view_as_real(found)[..., part], torch.view_as_real(expected)[..., part])


def test_windows_of_minus_infinity_are_in_the_input():
    def pooled(x):
        return [
            *F.max_pool2d(x, 3, 1, 1, return_indices=True),
            *F.max_pool2d(x, (3, 2), (1, 2), (1, 0), ceil_mode=True, return_indices=True),
            *F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True),
            *F.max_pool1d(x[0], 2, 1, 1, return_indices=True),
            *F.max_pool3d(x, 2, padding=1, return_indices=True),
        ]

    x = torch.full((2, 2, 7, 7), -INF)
    x[0, 0, 3:, 2:] = torch.arange(20.0).reshape(4, 5)
    x[1] = x[0].transpose(-1, -2)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = funcaot.compile(pooled)(one), pooled(other)
    assert_all_same(range(10), found, expected)
    for results in (found, expected):
        torch.autograd.backward(results[::2], [torch.ones_like(value) for value in results[::2]])
    assert_same(one.grad, other.grad)


def test_what_is_sampled_at_nan_is_nan():
    def sampled(x, grid):
        return [
            F.grid_sample(x, grid, mode=mode, align_corners=False)
            for mode in ("bilinear", "nearest")
        ]

    x = torch.ones(1, 2, 6, 6)
    x[0, 0, 2, 2], x[0, 1, 3, 4] = INF, NAN
    grid = torch.linspace(-1.2, 1.2, 64).reshape(1, 4, 8, 2)
    grid[0, 1] = NAN
    one, other = grid.clone().requires_grad_(), grid.clone().requires_grad_()
    found, expected = funcaot.compile(sampled)(x, one), sampled(x, other)
    assert_all_same(("bilinear", "nearest"), found, expected)
    for results in (found, expected):
        results[0].sum().backward()
    assert_same(one.grad, other.grad)


WITH_THE_OPTION = {
    "x + zeros": lambda x: x + torch.zeros_like(x),
    "zeros + x": lambda x: torch.zeros_like(x) + x,
    "x + tensor(0.)": lambda x: x + torch.tensor(0.0),
    "half().float()": lambda x: x.half().float(),
    "erf": torch.erf,
    "gelu": F.gelu,
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(min=0.0),
    "amax": lambda x: torch.stack([x, -x]).amax(0),
    "multi_margin_loss": lambda x: F.multi_margin_loss(
        x[None], torch.tensor([3]), reduction="none"
    ),
    "var_mean": lambda x: torch.var_mean(torch.stack([x, x.flip(0)]), 0)[1],
}


def test_the_option_keeps_special_values():
    def everything(x):
        return [function(x) for function in WITH_THE_OPTION.values()]

    x = torch.tensor(NUMBERS * 2)
    with funcaot.config.patch(exact_special_values=True):
        found = funcaot.compile(everything)(x)
    assert_all_same(WITH_THE_OPTION, found, everything(x))


def test_the_option_keeps_places_in_windows():
    def pooled(x):
        values, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return values, indices, F.adaptive_max_pool2d(x, 2, return_indices=True)[1]

    image = torch.arange(128.0).reshape(1, 2, 8, 8)
    image[0, 0] = NAN
    image[0, 1, :5] = -INF
    with funcaot.config.patch(exact_special_values=True):
        compiled = funcaot.compile(pooled)
        gradients = []
        for call in (compiled, pooled):
            x = image.clone().requires_grad_()
            results = call(x)
            gradients.append(torch.autograd.grad(results[0].sum(), x)[0])
            assert_all_same(("values", "indices", "adaptive"), results, pooled(image))
    assert_same(*gradients)


def test_the_option_is_part_of_inductors_cache():
    """The same graph is compiled anew for the other value, in this process and on disk."""
    x = torch.tensor([-0.0, 1.0] * 8)

    def function(x):
        return x + torch.zeros_like(x)

    found = []
    for exact in (True, False, True):
        with funcaot.config.patch(exact_special_values=exact):
            found.append(bool(funcaot.compile(function)(x)[0].signbit()))
    assert found == [False, True, False]


def test_the_option_holds_for_derivatives():
    def function(x):
        return (x + torch.zeros_like(x)).copysign(x.detach() + torch.zeros_like(x)).sum()

    x = torch.tensor([-0.0, 0.0, 1.0, -1.0]).requires_grad_()
    with funcaot.config.patch(exact_special_values=True):
        found = torch.autograd.grad(funcaot.compile(function)(x), x)[0]
    assert_same(found, torch.autograd.grad(function(x), x)[0])


def test_the_option_is_off_by_default():
    assert not funcaot.config.Config().exact_special_values


ODD = {
    "infinite": complex(1, math.inf),
    "both": complex(-math.inf, -math.inf),
    "undefined": complex(math.nan, 0),
    "zero": complex(0.0, -0.0),
    "other zero": complex(-0.0, 1.0),
}


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ODD)
def test_complex_constants(name, backend):
    """Python's text of them is no code (``infj``), or code for another one (``-0j``)."""
    number = ODD[name]

    def function(z):
        chosen = torch.where(z.real > 2, z, number)
        return torch.full((2,), number), chosen, torch.full_like(z, number)

    compiled = funcaot.compile(function, backend=backend)
    z = torch.tensor([1 + 2j, 3 - 1j])
    for found, wanted in zip(compiled(z), function(z), strict=True):
        one, other = torch.view_as_real(found), torch.view_as_real(wanted)
        torch.testing.assert_close(one, other, equal_nan=True)
        assert torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())
