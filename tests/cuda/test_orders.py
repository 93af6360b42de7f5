"""Programs compiled for the GPU, to second order and under each transform, against eager."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jvp, vmap

import funcaot
from funcaot.testing.database.elementwise import ComplexSquare
from tests.cuda.comparing import close, looks

# What Inductor says of speed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
]

ROWS = (5, 8, 11)  # the second size opens the program, the third has to fit it


def pairs(x):
    distance = (x[:, None] - x[None]).square().sum(-1) + 0.5
    return torch.exp(-distance).sum(1) + distance.rsqrt().mean(1)


def messages(x):
    source = torch.arange(len(x), device=x.device)
    target = (source * 3 + 1) % len(x)
    sent = (x[source] * x[target]).tanh()
    return torch.zeros_like(x).index_add(0, target, sent).sin()


def attention(x):
    weights = (x @ x.t() / 2).softmax(-1)
    return F.layer_norm(weights @ x, (x.shape[1],))


def convolution(x):
    # Images in channels_last, so that layouts of gradients count.
    images = (x[:, :, None, None] * torch.ones(4, 3, device=x.device, dtype=x.dtype)).permute(
        0, 3, 1, 2
    )
    kernel = torch.linspace(-1, 1, 3 * 3 * 9, device=x.device, dtype=x.dtype)
    return F.conv2d(images, kernel.reshape(3, 3, 3, 3), padding=1).tanh()


PROGRAMS = {
    "elementwise": lambda x: (x.sin() * x.exp()).tanh() + x.abs().sqrt(),
    "reductions": lambda x: x.logsumexp(1) * x.amax(1) + x.std(1),
    "matmul": lambda x: (x @ x.t()).tanh() @ x,
    "pairs": pairs,
    "messages": messages,
    "attention": attention,
    "convolution": convolution,
    "cumulative": lambda x: x.cumsum(0).sin() + x.flip(0),
    "sorted": lambda x: x.sort(0).values * torch.arange(len(x), device=x.device)[:, None],
    "scatter": lambda x: torch.zeros_like(x).scatter_add(
        1, torch.zeros_like(x, dtype=torch.int64), x.exp()
    ),
    "linear algebra": lambda x: torch.linalg.solve(
        x.t() @ x + torch.eye(x.shape[1], device=x.device, dtype=x.dtype), x.t()
    ),
    "spectrum": lambda x: torch.fft.rfft(x, dim=1).abs(),
    "embedding": lambda x: F.embedding(torch.arange(4, device=x.device) % 3, x).square(),
    "function": lambda x: ComplexSquare.apply(x.sin()) + ComplexSquare.apply(x),
    "strided": lambda x: x.t()[:, ::2].exp().t(),
    "normalized": lambda x: F.batch_norm(x, None, None, training=True).sigmoid(),
    "loss": lambda x: F.cross_entropy(x, torch.arange(len(x), device=x.device) % 3),
}


def loss(function):
    return lambda x: (function(x) * 1.3).sin().sum()


def first(function, x):
    x = x.clone().requires_grad_()
    value = function(x)
    return value, torch.autograd.grad((value * 1.3).sin().sum(), x)


def second(function, x):
    x = x.clone().requires_grad_()
    (force,) = torch.autograd.grad(loss(function)(x), x, create_graph=True)
    return force, torch.autograd.grad(force.square().sum(), x)


ASKED = {
    "value": lambda compiled, f, x: compiled(f)(x),
    "first": lambda compiled, f, x: first(compiled(f), x),
    "second": lambda compiled, f, x: second(compiled(f), x),
    "grad inside": lambda compiled, f, x: compiled(grad(loss(f)))(x),
    "jvp": lambda compiled, f, x: jvp(compiled(f), (x,), (x.cos(),)),
    "vmap": lambda compiled, f, x: vmap(compiled(loss(f)))(torch.stack([x, x.sin()])),
    "hessian inside": lambda compiled, f, x: compiled(hessian(loss(f)))(x[:5]),
}
# torch's own cumulative and atomic kernels add in an order of their own.
LOOSE = {"messages", "scatter", "cumulative", "spectrum", "linear algebra", "convolution"}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_as_eager(device, backend, name, asked):
    if asked == "hessian inside" and name in ("convolution", "embedding"):
        pytest.skip("minutes of compilation, and the others show it")
    if asked == "second" and name == "spectrum":
        pytest.skip("its strides differ on every device: docs/limits.md")
    programs = {}

    def compiled(function):
        if asked not in programs:
            programs[asked] = funcaot.compile(function, backend=backend)
        return programs[asked]

    # cuDNN computes float32 convolutions in TF32 unless it is told not to.
    torch.backends.cudnn.allow_tf32 = False
    tolerance = 1e-9 if name in LOOSE else None
    for rows in ROWS:
        x = torch.randn(rows, 6, device=device, dtype=torch.float64)
        expected = looks(ASKED[asked](lambda function: function, PROGRAMS[name], x.clone()))
        found = looks(ASKED[asked](compiled, PROGRAMS[name], x.clone()))
        close(found, expected, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["elementwise", "reductions", "pairs", "attention", "loss"])
def test_lower_precision(device, name, dtype):
    """Against float64: kernels that are fused round less often than eager's."""
    compiled = funcaot.compile(PROGRAMS[name])
    for rows in ROWS:
        x = torch.randn(rows, 6, device=device, dtype=torch.float64)
        for found, wanted in zip(
            looks(first(compiled, x.to(dtype))),
            looks(first(PROGRAMS[name], x.to(dtype).double())),
            strict=True,
        ):
            scale = 1 + wanted[0].abs().max()
            bound = 1e-5 if dtype is torch.float32 else 6e-2
            assert ((found[0].double() - wanted[0]).abs().max() / scale) < bound


def test_layouts_of_what_is_cast(device):
    """A GPU's kernel reads expanded operands of other dtypes where they lie; a CPU's copies."""

    def function(x, y):
        return x * y, torch.add(x, y), torch.atan2(x, y)

    compiled = funcaot.compile(function, backend="eager")
    half, full = torch.float16, torch.float32
    for narrow, wide in ((half, half), (torch.bool, full), (half, full), (torch.int64, full)):
        y = torch.rand(3, 4, 5, device=device).to(wide).mT
        whole = torch.ones((), dtype=narrow, device=device).expand(3, 5, 4)
        for x in (whole, whole[..., :1].contiguous().expand(3, 5, 4)):
            close(looks(compiled(x, y)), looks(function(x, y)))
