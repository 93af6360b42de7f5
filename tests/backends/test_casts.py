"""Casts on Inductor: what a narrow dtype loses is lost, whatever comes between and after."""

import itertools

import pytest
import torch

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed")  # Inductor's

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = FLOATS + INTEGERS

# Between two casts, and exact: only the casts round.
BETWEEN = {
    "nothing": lambda x: x,
    "neg": lambda x: -x,
    "view": lambda x: x.view(2, -1),
    "slice": lambda x: x[1:],
    "flip": lambda x: x.flip(0),
    "cat": lambda x: torch.cat([x, x]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "reduction": lambda x: x.amax(),
    "copy": lambda x: torch.empty_like(x).copy_(x),
}


def numbers(dtype):
    """Numbers that each narrower dtype rounds, overflows or underflows, and that integers hold."""
    torch.manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(0, 100, (64,)).to(dtype)
    x = torch.rand(64, dtype=torch.float64) * 90
    x[::7] *= 1e-3
    return x.to(dtype)


def wild(dtype):
    x = torch.randn(64, dtype=torch.float64) * torch.logspace(-12, 9, 64, dtype=torch.float64)
    return x.to(dtype)


def assert_equal(result, expected, **options):
    torch.testing.assert_close(list(result), list(expected), rtol=0, atol=0, **options)


def chains(length):
    """Casts one after the other, with something between, from each dtype."""
    for source in DTYPES:
        targets = [t for t in itertools.product(DTYPES, repeat=length) if source not in t[:1]]
        yield source, [t for t in targets if all(a != b for a, b in itertools.pairwise(t))]


def run_casts(x, targets, between):
    results = []
    for chain in targets:
        y = x
        for dtype in chain:
            y = between(y.to(dtype))
        results.append(y)
    return results


def rarely(names, often):
    """All names but a few run with the long group."""
    marks = [pytest.mark.slow, pytest.mark.long]
    return [name if name in often else pytest.param(name, marks=marks) for name in names]


@pytest.mark.parametrize("name", rarely(BETWEEN, {"neg"}))
def test_two_casts(name):
    for source, targets in chains(2):
        function = funcaot.compile(lambda x, t=targets: run_casts(x, t, BETWEEN[name]))
        x = numbers(source)
        for _ in range(2):
            assert_equal(function(x), run_casts(x, targets, BETWEEN[name]))


@pytest.mark.slow
@pytest.mark.long
def test_three_casts():
    for source, targets in chains(3):
        function = funcaot.compile(lambda x, t=targets: run_casts(x, t, BETWEEN["neg"]))
        x = numbers(source)
        assert_equal(function(x), run_casts(x, targets, BETWEEN["neg"]))


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, *EIGHT_BITS], ids=str)
def test_overflow_and_underflow(narrow):
    def there_and_back(x):
        return x.to(narrow).to(x.dtype), (x * 1).to(narrow).to(torch.float32) * 1

    function = funcaot.compile(there_and_back)
    for dtype in (torch.float32, torch.float64):
        x = wild(dtype)
        assert_equal(function(x), there_and_back(x), equal_nan=True)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_round_too(narrow):
    def loss(x):
        return (x.to(narrow).to(torch.float32) * torch.linspace(0.1, 3.0, 64)).sum()

    gradients = []
    for function in (loss, funcaot.compile(loss)):
        x = numbers(torch.float32).requires_grad_()
        gradients.append(torch.autograd.grad(function(x), x))
    assert_equal(*gradients)


def test_a_straight_through_quantizer():
    class Quantize(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.half().float()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g.bfloat16().float()

    def loss(x):
        return (Quantize.apply(x) * torch.linspace(0.1, 3.0, 64)).sum()

    results = []
    for function in (loss, funcaot.compile(loss)):
        x = numbers(torch.float32).requires_grad_()
        results.append(
            [Quantize.apply(x) if function is loss else funcaot.compile(Quantize.apply)(x)]
        )
        results[-1] += torch.autograd.grad(function(x), x)
    assert_equal(*results)


def decisions(x, y):
    """Each computes in several ops what it then decides by."""

    def product():
        return x * y * 9 + x

    top = product().topk(2, dim=1).values[:, -1:]
    scale = product().abs().amax(1, keepdim=True) / 7
    return [
        product() == product().amax(1, keepdim=True),
        product() >= top,
        product().floor(),
        product().frac(),
        product().to(torch.int32),
        (product() * 1e-8).bool(),
        product().sort(1).indices,
        torch.fmod(product(), y),
        (product() / scale).round().clamp(-8, 7) * scale,
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_a_last_digit_decides(dtype):
    """What is compared, or cut to a whole number, was rounded by each op before."""
    torch.manual_seed(0)
    compiled = funcaot.compile(decisions)
    for _ in range(3):
        x, y = (torch.rand(33, 17).add(0.1).to(dtype) for _ in range(2))
        assert_equal(compiled(x, y), decisions(x, y))


def extremes(x, y):
    return (x + y).max() + (x + y).min() + (x + 1).amax() + (y + 1).amin() + x.exp().amax(0).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_the_largest(dtype):
    """A gradient finds the largest again: what it computes for that equals what was compared."""
    torch.manual_seed(0)
    compiled = funcaot.compile(extremes)
    for _ in range(8):
        inputs = [torch.randn(8, 8).to(dtype).requires_grad_() for _ in range(2)]
        expected = torch.autograd.grad(extremes(*inputs), inputs)
        result = torch.autograd.grad(compiled(*inputs), inputs)
        torch.testing.assert_close(result, expected)
