"""The GPU's kernels of attention to every order, against torch's MATH kernel in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import funcaot
from funcaot.errors import UnsupportedError
from tests.cuda.comparing import close, looks

# Advice of Inductor's about speed.
pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32")

KERNELS = {
    "flash": (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "efficient, half": (SDPBackend.EFFICIENT_ATTENTION, torch.float16),
    "math": (SDPBackend.MATH, torch.float32),
    "chosen by torch": (None, torch.bfloat16),
}
KINDS = {"plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3}, "mask": {}}
LENGTH, FEATURES = 13, 32


def loss_of(keywords):
    def loss(query, key, value):
        return (F.scaled_dot_product_attention(query, key, value, **keywords) * 1.3).sin().sum()

    return loss


def second(run, operands):
    inputs = [each.clone().requires_grad_() for each in operands]
    first = torch.autograd.grad(run(*inputs), inputs, create_graph=True)
    total = sum((each.float() ** 2).sum() for each in first)
    return [*first, *torch.autograd.grad(total, inputs)]


ASKED = {
    "second": second,
    "jvp": lambda run, operands: jvp(run, operands, tuple(each.cos() for each in operands)),
    "forward over reverse": lambda run, operands: jvp(
        grad(run, (0, 1, 2)), operands, tuple(each.cos() for each in operands)
    ),
    "reverse over reverse": lambda run, operands: grad(
        lambda *each: sum((part.float() ** 2).sum() for part in grad(run, (0, 1, 2))(*each)),
        (0, 1, 2),
    )(*operands),
    "vmap of grad": lambda run, operands: vmap(grad(run))(
        *(torch.stack([each, each.sin()]) for each in operands)
    ),
}


def operands_on(device, dtype):
    return tuple(
        torch.randn(2, 2, LENGTH, FEATURES, dtype=torch.float64).to(dtype).to(device)
        for _ in range(3)
    )


def agree(found, wanted, dtype):
    bound = {torch.float32: 2e-5, torch.float16: 1e-2}.get(dtype, 6e-2)
    for one, other in zip(looks(found), looks(wanted), strict=True):
        scale = 1 + other[0].double().abs().max()
        assert ((one[0].double() - other[0].double()).abs().max() / scale) < bound


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("way", ["inductor", "eager", "installed"])
def test_every_order(device, way, kernel, kind, asked):
    chosen, dtype = KERNELS[kernel]
    if device == "cpu" and kernel not in ("math", "chosen by torch"):
        pytest.skip("a kernel of GPUs")
    if kind == "mask" and kernel in ("flash", "cudnn"):
        pytest.skip("the kernel takes no such mask")
    operands = operands_on(device, dtype)
    keywords = dict(KINDS[kind])
    exact = dict(keywords)
    if kind == "mask":
        keywords["attn_mask"] = torch.randn(LENGTH, LENGTH, device=device, dtype=dtype)
        exact["attn_mask"] = keywords["attn_mask"].double()
    with sdpa_kernel(SDPBackend.MATH):
        wanted = ASKED[asked](loss_of(exact), tuple(each.double() for each in operands))
    with sdpa_kernel(chosen or [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        if way == "installed":
            with funcaot.install():
                for _ in range(2):
                    agree(ASKED[asked](loss_of(keywords), operands), wanted, dtype)
        else:
            compiled = funcaot.compile(loss_of(keywords), backend=way)
            for _ in range(2):
                agree(ASKED[asked](compiled, operands), wanted, dtype)


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_dropout_in_the_kernel(device, kernel):
    """Eager's numbers at first order, a refusal at second."""
    chosen, dtype = KERNELS[kernel]
    if device == "cpu":
        pytest.skip("a kernel of GPUs")
    operands = [each.requires_grad_() for each in operands_on(device, dtype)]
    run = loss_of({"dropout_p": 0.3})
    with sdpa_kernel(chosen), funcaot.config.patch(fallback_random=True):
        compiled = funcaot.compile(run, backend="eager")
        for seed in range(3):
            found = []
            for call in (run, compiled):
                torch.manual_seed(seed)
                value = call(*operands)
                found.append(looks([value, *torch.autograd.grad(value, operands)]))
            close(found[1], found[0])
        first = torch.autograd.grad(compiled(*operands), operands, create_graph=True)
        with pytest.raises(UnsupportedError, match="at random"):
            torch.autograd.grad(sum((each.float() ** 2).sum() for each in first), operands)
