"""Losses and layers of pictures, and how the memory of their inputs may lie."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PICTURES = (2, 3, 4, 5)


@dataclass(frozen=True)
class Case:
    """A function of tensors; the first is a batch of pictures."""

    function: Callable[..., Tensor]
    more: tuple[tuple[int, ...], ...] = ()  # shapes of the others
    shape: tuple[int, ...] = PICTURES


def drawn(shape, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _channels_last(x: Tensor) -> Tensor:
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x.T.contiguous().T


def _turned(x: Tensor) -> Tensor:
    """With the last two dimensions in the other order."""
    return x.mT.contiguous().mT


def _reversed(x: Tensor) -> Tensor:
    """With all dimensions in the other order."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _spread(x: Tensor) -> Tensor:
    """Every other element of its memory."""
    return torch.stack([x, x], -1)[..., 0]


def _expanded(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": _channels_last,
    "turned": _turned,
    "reversed": _reversed,
    "spread": _spread,
    "expanded": _expanded,
}
CLASSES = torch.tensor([[[0, 2, 1, 1, 2], [2, 0, 0, 1, 2], [1, 1, 2, 0, 0], [2, 2, 1, 0, 1]]] * 2)
TURNED_CLASSES = CLASSES.mT.contiguous().mT
WEIGHT = torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)


def _cross_entropy(target=CLASSES, **keywords):
    return Case(lambda x: F.cross_entropy(x, target, **keywords))


def _nll(target=CLASSES, **keywords):
    return Case(lambda x: F.nll_loss(F.log_softmax(x, 1), target, **keywords))


REDUCTIONS = ("none", "mean", "sum")
LOSSES: dict[str, Case] = {
    **{f"nll_{r}": _nll(reduction=r, ignore_index=1) for r in REDUCTIONS},
    **{
        f"nll_of_x_{r}": Case(lambda x, r=r: F.nll_loss(x, CLASSES, reduction=r))
        for r in REDUCTIONS
    },
    **{f"nll_weighted_{r}": _nll(weight=WEIGHT, reduction=r) for r in REDUCTIONS},
    "nll_turned": _nll(TURNED_CLASSES, reduction="none"),
    **{f"cross_entropy_{r}": _cross_entropy(reduction=r) for r in REDUCTIONS},
    **{
        f"cross_entropy_weighted_{r}": _cross_entropy(weight=WEIGHT, reduction=r, ignore_index=2)
        for r in REDUCTIONS
    },
    **{
        f"cross_entropy_smoothed_{r}": _cross_entropy(
            weight=WEIGHT, reduction=r, ignore_index=0, label_smoothing=0.2
        )
        for r in REDUCTIONS
    },
    "cross_entropy_turned": _cross_entropy(TURNED_CLASSES, reduction="none", label_smoothing=0.1),
    "cross_entropy_of_probabilities": Case(
        lambda x, y: F.cross_entropy(x, y.softmax(1), reduction="none", label_smoothing=0.1),
        (PICTURES,),
    ),
    "cross_entropy_of_rows": Case(
        lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1, 4]), reduction="none"), shape=(4, 5)
    ),
    "cross_entropy_of_sequences": Case(
        lambda x: F.cross_entropy(x, CLASSES[:, 0], reduction="none"), shape=(2, 3, 5)
    ),
    "nll_of_one_class": Case(
        lambda x: F.nll_loss(x.log_softmax(1), 0 * TURNED_CLASSES, reduction="none"),
        shape=(2, 1, 4, 5),
    ),
    "cross_entropy_of_volumes": Case(
        lambda x: F.cross_entropy(x, CLASSES[:, None].repeat(1, 2, 1, 1), label_smoothing=0.1),
        shape=(2, 3, 2, 4, 5),
    ),
    "kl_div": Case(
        lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="none"), (PICTURES,)
    ),
    "mse": Case(lambda x, y: F.mse_loss(x, y, reduction="none"), (PICTURES,)),
    "smooth_l1": Case(lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), (PICTURES,)),
    "huber": Case(lambda x, y: F.huber_loss(x, y), (PICTURES,)),
    "binary": Case(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"),
        (PICTURES,),
    ),
    "binary_of_probabilities": Case(
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none"),
        (PICTURES,),
    ),
    "soft_margin": Case(lambda x: F.soft_margin_loss(x, CLASSES[:, None] - 0.5)),
}


def _grid(x, places, **keywords):
    return F.grid_sample(x, places.tanh(), align_corners=False, **keywords)


LAYERS: dict[str, Case] = {
    "max_pool": Case(lambda x: F.max_pool2d(x, 2, stride=1)),
    "max_pool_dilated": Case(lambda x: F.max_pool2d(x, 2, padding=1, dilation=2)),
    "max_pool_indices": Case(lambda x: F.max_pool2d(x, 2, return_indices=True)[0]),
    "max_pool_3d": Case(lambda x: F.max_pool3d(x, 2, stride=1), shape=(2, 3, 2, 4, 5)),
    "adaptive_max_pool": Case(lambda x: F.adaptive_max_pool2d(x, (2, 3))),
    "avg_pool": Case(lambda x: F.avg_pool2d(x, 2, stride=1, padding=1)),
    "avg_pool_3d": Case(lambda x: F.avg_pool3d(x, 2, stride=1), shape=(2, 3, 2, 4, 5)),
    "adaptive_avg_pool": Case(lambda x: F.adaptive_avg_pool2d(x, (2, 3))),
    "adaptive_avg_pool_to_one": Case(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "lp_pool": Case(lambda x: F.lp_pool2d(x.exp(), 2.0, 2)),
    "nearest": Case(lambda x: F.interpolate(x, scale_factor=2)),
    "nearest_exact": Case(lambda x: F.interpolate(x, size=(3, 7), mode="nearest-exact")),
    "bilinear": Case(lambda x: F.interpolate(x, size=(3, 7), mode="bilinear")),
    "bicubic": Case(lambda x: F.interpolate(x, size=(6, 4), mode="bicubic", align_corners=True)),
    "area": Case(lambda x: F.interpolate(x, size=(2, 3), mode="area")),
    "grid_sample": Case(_grid, ((2, 3, 3, 2),)),
    "grid_sample_nearest": Case(
        lambda x, g: _grid(x, g, mode="nearest", padding_mode="border"), ((2, 3, 3, 2),)
    ),
    "grid_sample_bicubic": Case(
        lambda x, g: _grid(x, g, mode="bicubic", padding_mode="reflection"), ((2, 3, 3, 2),)
    ),
    "group_norm": Case(lambda x, w, b: F.group_norm(x, 3, w, b), ((3,), (3,))),
    "group_norm_plain": Case(lambda x: F.group_norm(x, 1)),
    "batch_norm": Case(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((3,), (3,))
    ),
    "batch_norm_evaluated": Case(
        lambda x, w, b: F.batch_norm(x, WEIGHT, WEIGHT, w, b), ((3,), (3,))
    ),
    "instance_norm": Case(lambda x: F.instance_norm(x)),
    "layer_norm": Case(lambda x, w: F.layer_norm(x, (4, 5), w), ((4, 5),)),
    "local_response_norm": Case(lambda x: F.local_response_norm(x, 2)),
    "conv": Case(lambda x, w, b: F.conv2d(x, w, b, padding=1), ((2, 3, 3, 3), (2,))),
    "conv_grouped": Case(lambda x, w: F.conv2d(x, w, groups=3), ((3, 1, 2, 2),)),
    "conv_transposed": Case(lambda x, w: F.conv_transpose2d(x, w, stride=2), ((3, 2, 2, 2),)),
    "pixel_shuffle": Case(lambda x: F.pixel_shuffle(torch.cat([x, x[:, :1]], 1), 2)),
    "pixel_unshuffle": Case(lambda x: F.pixel_unshuffle(x[..., :4], 2)),
    "channel_shuffle": Case(lambda x: F.channel_shuffle(x, 3)),
    "pad": Case(lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect")),
    "pad_circular": Case(lambda x: F.pad(x, (1, 2, 0, 1), mode="circular")),
    "pad_replicate": Case(lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate")),
    "unfold": Case(lambda x: F.unfold(x, 2)),
    "fold": Case(lambda x: F.fold(x, (3, 6), 2), shape=(2, 4, 10)),
    "prelu": Case(lambda x, w: F.prelu(x, w), ((3,),)),
    "glu": Case(lambda x: F.glu(torch.cat([x, x * 2], 1), 1)),
    "softmax": Case(lambda x: x.softmax(1)),
    "log_softmax": Case(lambda x: x.log_softmax(2)),
    "gelu": Case(F.gelu),
    "hardswish": Case(F.hardswish),
    "celu": Case(F.celu),
    "cumsum": Case(lambda x: x.cumsum(1)),
    "sorted": Case(lambda x: x.sort(1)[0]),
    "median": Case(lambda x: x.median(1)[0]),
    "gather": Case(lambda x: x.gather(1, CLASSES[:, None])),
    "index_select": Case(lambda x: x.index_select(1, torch.tensor([0, 2, 2]))),
    "flip": Case(lambda x: x.flip(1) * x),
    "roll": Case(lambda x: x.roll(1, 2) * x),
    "linear": Case(lambda x, w, b: F.linear(x, w, b), ((6, 5), (6,))),
    "bilinear_form": Case(lambda x, y, w: F.bilinear(x, y, w), (PICTURES, (2, 5, 5))),
    "embedding": Case(lambda x: F.embedding(CLASSES[0], x), shape=(4, 5)),
    "cosine": Case(lambda x, y: F.cosine_similarity(x, y, dim=1), (PICTURES,)),
    "norm": Case(lambda x: F.normalize(x, dim=1)),
    "maxima": Case(lambda x: x.amax((2, 3))),
    "variance": Case(lambda x: x.var((0, 2, 3), keepdim=True)),
}
CASES = {**LOSSES, **LAYERS}


# Torch's gradient of these refuses such pictures.
UNDIFFERENTIABLE = {
    (f"nll_of_x_{reduction}", layout)
    for reduction in REDUCTIONS
    for layout in ("channels_last", "turned", "reversed")
}


def inputs(name: str, layout: str) -> list[Tensor]:
    """What a case is called with; what has as many dimensions as the pictures lies as they do."""
    case, lay = CASES[name], LAYOUTS[layout]
    values = [lay(drawn(case.shape, 1))]
    for number, shape in enumerate(case.more):
        value = drawn(shape, 2 + number)
        values.append(lay(value) if len(shape) == len(case.shape) else value)
    return [value.detach() for value in values]


def orders(
    names: Sequence[str], layout: str, *, pushed: str = "alike", function: Any = None
) -> dict[str, Tensor | None]:
    """Outputs, gradients, and gradients of a function of the gradients, of many cases in one call.

    Args:
        names: The cases.
        layout: How their inputs lie.
        pushed: Whether gradients that arrive lie as the outputs do (``alike``), or are ``turned``.
        function: The compiled function of all of them; None for eager.
    """
    leaves = [[value.requires_grad_() for value in inputs(name, layout)] for name in names]
    flat = [leaf for each in leaves for leaf in each]
    outputs = (function or together(tuple(names)))(leaves)
    arriving = [_arriving(output, pushed) for output in outputs]
    options = {"allow_unused": True}
    first = torch.autograd.grad(outputs, flat, arriving, create_graph=True, **options)
    curved = sum((g * g * 0.5).sum() for g in first if g is not None and g.requires_grad)
    second = torch.autograd.grad(curved, flat, **options)
    labels = [
        f"{n} by {place}" for n, e in zip(names, leaves, strict=True) for place in range(len(e))
    ]
    found = {f"{name}": output for name, output in zip(names, outputs, strict=True)}
    for order, gradients in enumerate((first, second), 1):
        for label, gradient in zip(labels, gradients, strict=True):
            found[f"{label}, order {order}"] = gradient
    return {key: value if value is None else value.detach() for key, value in found.items()}


@functools.cache
def together(names: tuple[str, ...]) -> Callable[..., list[Tensor]]:
    """The function of many cases, of a list of tensors for each."""
    functions = [CASES[name].function for name in names]

    def run(leaves: list[list[Tensor]]) -> list[Tensor]:
        return [function(*each) for function, each in zip(functions, leaves, strict=True)]

    return run


def _arriving(output: Tensor, pushed: str) -> Tensor:
    value = torch.empty_like(output).copy_(drawn(output.shape, 9))
    return _turned(value) if pushed == "turned" and output.dim() > 1 else value


def differences(found: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> list[str]:
    """Where values differ, or strides of a dimension with more than one element."""
    texts = []
    for key, want in wanted.items():
        got = found[key]
        if got is None or want is None:
            if got is not want:
                texts.append(f"{key}: {got} instead of {want}")
        elif got.shape != want.shape or got.dtype != want.dtype:
            texts.append(f"{key}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}")
        elif not torch.allclose(got, want, rtol=1e-8, atol=1e-9):
            texts.append(f"{key}: off by {(got - want).abs().max().item()}")
        elif _strides(got) != _strides(want):
            texts.append(f"{key}: strides {got.stride()} instead of {want.stride()}")
    return texts


def _strides(tensor: Tensor) -> list[int]:
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in pairs if size != 1]
