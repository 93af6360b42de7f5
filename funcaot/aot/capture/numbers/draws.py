"""Random draws and dropout with an open number: eager's draws, by ops that take tensors of it."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tensors.numbered_draws import DRAWN
from funcaot._torch.tensors.sizes.open_numbers import OpenFloat
from funcaot.aot.capture.numbers.arithmetic import arithmetic
from funcaot.aot.capture.numbers.given import Call, Rule, is_real
from funcaot.aot.graph.tensor_spec import is_dense

__all__ = ["RULES"]

# The parameters of each, with what they are where they aren't given.
_PARAMETERS: dict[str, tuple[tuple[str, float], ...]] = {
    "normal_": (("mean", 0.0), ("std", 1.0)),
    "uniform_": (("from", 0.0), ("to", 1.0)),
    "bernoulli_": (("p", 0.5),),
    "exponential_": (("lambd", 1.0),),
    "log_normal_": (("mean", 1.0), ("std", 2.0)),
    "cauchy_": (("median", 0.0), ("sigma", 1.0)),
    "geometric_": (("p", 0.0),),
}


def _like(tensor: Any) -> torch.Tensor | None:
    """What says how a result lies in memory, without its history; None for unusual ones."""
    if not is_real(tensor) or tensor.is_nested or tensor.layout is not torch.strided:
        return None
    return None if functorch.transforms_active() else tensor.detach()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether what is made like it lies in memory as it does."""
    return is_dense(tuple(tensor.shape), tensor.stride())


def _draw(tensor: torch.Tensor, method: str, *numbers: Any) -> torch.Tensor | None:
    given = []
    for number in numbers:
        if type(number) is OpenFloat:
            if number.is_at_level:
                return None  # vmap has a rule for the draw by a plain number alone
            given.append(number.tensor())
        elif type(number) in (int, float):
            given.append(torch.scalar_tensor(number, dtype=torch.float64, device="cpu"))
        else:
            return None
    return DRAWN(tensor, method, given)


def _in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """A method that fills a tensor."""
    method, parameters = func.__name__, _PARAMETERS[func.__name__]
    numbers, names = dict(parameters), [name for name, _ in parameters]
    numbers |= dict(zip(names, args[1:], strict=False)) | kwargs
    like = _like(args[0]) if args else None
    if like is None or not _is_dense(like):
        return None
    if len(args) > 1 + len(names) or len(numbers) != len(names):
        return None
    drawn = _draw(like, method, *numbers.values())
    return None if drawn is None else (torch.Tensor.copy_, (args[0], drawn), {})


def _dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Dropout of a tensor on the CPU, as eager takes it apart there."""
    given = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
    if set(given) != {"input", "p", "train"} or type(given["train"]) is not bool:
        return None
    tensor: Any = given["input"]
    probability: Any = given["p"]
    if type(probability) is not OpenFloat or not 0 <= probability <= 1:
        return None
    if not given["train"]:
        return func, (tensor, 0.5, False), {}
    like = _like(tensor)
    if like is None or like.device.type != "cpu" or like.numel() == 0:
        return None
    if "feature" in func.__name__ and like.dim() > 1:
        like = like.new_empty((*like.shape[:2], *(1 for _ in like.shape[2:])))
    elif "feature" in func.__name__ or not _is_dense(like):
        return None
    if probability.is_one_of((0.0, 1.0)):
        return None
    whole: Any = 1.0
    kept = whole - probability
    noise = _draw(like, "bernoulli_", kept)
    if noise is None or (scaled := arithmetic(torch.div, (noise, kept), {})) is None:
        return None
    method = torch.Tensor.mul_ if func.__name__.endswith("_") else torch.Tensor.mul
    return method, (tensor, scaled[0](*scaled[1])), {}


RULES: dict[str, Rule] = {
    **dict.fromkeys(_PARAMETERS, _in_place),
    **dict.fromkeys(("dropout", "dropout_", "feature_dropout", "feature_dropout_"), _dropout),
}
