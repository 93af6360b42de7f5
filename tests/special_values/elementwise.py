"""Ops of one, two and three operands, activations, conversions and losses, element by element."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.special_values.records import (
    COMPLEX64,
    CONTIGUOUS,
    FEW,
    FLOAT32,
    FLOATS,
    NARROW,
    TRANSPOSED,
    Case,
    Function,
    Group,
)

_LAYOUTS = (CONTIGUOUS, TRANSPOSED, FEW)
_ALL = (*FLOATS, *NARROW)

_UNARY = """
abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp
exp2 expm1 floor frac i0 lgamma log log10 log1p log2 logit nan_to_num neg positive rad2deg
reciprocal relu round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan tanh trunc
""".split()  # noqa: SIM905 - a list of words
_QUESTIONS = """
isfinite isinf isnan isneginf isposinf isreal logical_not signbit
""".split()  # noqa: SIM905 - a list of words
_SPECIAL = """
airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx i0e i1 i1e log_ndtr
modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtr ndtri
scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
""".split()  # noqa: SIM905 - a list of words
_COMPLEX = """
abs acos acosh angle asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 neg
reciprocal rsqrt sgn sigmoid sin sinh sqrt square tan tanh
""".split()  # noqa: SIM905 - a list of words
_BINARY = """
add atan2 copysign div floor_divide fmax fmin fmod hypot logaddexp logaddexp2 maximum minimum
mul pow remainder sub xlogy
""".split()  # noqa: SIM905 - a list of words
_COMPARISONS = """
eq ge gt isclose le logical_and logical_or logical_xor lt ne
""".split()  # noqa: SIM905 - a list of words

_FURTHER_UNARY: dict[str, Function] = {
    "frexp": torch.frexp,
    "nan_to_num(1, 2, 3)": lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0),
    "polygamma(1)": lambda x: torch.polygamma(1, x),
    "round(decimals=1)": lambda x: torch.round(x, decimals=1),
    "clamp(-1, 1)": lambda x: torch.clamp(x, -1, 1),
    "clamp(min=0.)": lambda x: torch.clamp(x, min=0.0),
    "clamp(max=-0.)": lambda x: torch.clamp(x, max=-0.0),
    "clamp(min=nan)": lambda x: torch.clamp(x, min=float("nan")),
    "clamp(2, 1)": lambda x: torch.clamp(x, 2, 1),
    "clamp(-inf, inf)": lambda x: torch.clamp(x, -float("inf"), float("inf")),
    "clamp_min(1)": lambda x: torch.clamp_min(x, 1),
    "clamp_max(1)": lambda x: torch.clamp_max(x, 1),
    "logit(0.1)": lambda x: torch.logit(x, 0.1),
}
_ACTIVATIONS: dict[str, Function] = {
    **{
        name: getattr(F, name)
        for name in """
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu
silu softplus softshrink softsign tanhshrink
""".split()  # noqa: SIM905 - a list of words
    },
    "gelu(tanh)": lambda x: F.gelu(x, approximate="tanh"),
    "elu(-1)": lambda x: F.elu(x, -1.0),
    "leaky_relu(-1)": lambda x: F.leaky_relu(x, -1.0),
    "leaky_relu(0)": lambda x: F.leaky_relu(x, 0.0),
    "softplus(2, 1)": lambda x: F.softplus(x, 2, 1),
    "threshold(0, 5)": lambda x: F.threshold(x, 0.0, 5.0),
    "rrelu, eval": lambda x: F.rrelu(x),
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.25)),
    "dropout, eval": lambda x: F.dropout(x, 0.5, training=False),
    "hardtanh(0, 0)": lambda x: F.hardtanh(x, -0.0, 0.5),
}


def _converted(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x.to(dtype)


_CONVERSIONS: dict[str, Function] = {
    f"to({name})": functools.partial(_converted, getattr(torch, name))
    for name in """
bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64
""".split()  # noqa: SIM905 - a list of words
} | {
    "half().float()": lambda x: x.half().float(),
    "bfloat16().double()": lambda x: x.bfloat16().double(),
    "float().double().float()": lambda x: x.float().double().float(),
    "half().bfloat16()": lambda x: x.half().bfloat16(),
    "int().float()": lambda x: x.clamp(-9, 9).nan_to_num().int().float(),
}
_FURTHER_BINARY: dict[str, Function] = {
    "div(trunc)": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div(floor)": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "add(alpha=0)": lambda x, y: torch.add(x, y, alpha=0),
    "add(alpha=2)": lambda x, y: torch.add(x, y, alpha=2),
    "sub(alpha=-1)": lambda x, y: torch.sub(x, y, alpha=-1),
    "rsub": torch.rsub,
    "float_power": torch.float_power,
    "heaviside": torch.heaviside,
    "ldexp": torch.ldexp,
    "nextafter": torch.nextafter,
    "special.xlog1py": torch.special.xlog1py,
    "special.zeta": torch.special.zeta,
    "igamma": torch.igamma,
    "igammac": torch.igammac,
    "lerp(0.3)": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp(0.7)": lambda x, y: torch.lerp(x, y, 0.7),
    "lerp(0)": lambda x, y: torch.lerp(x, y, 0.0),
    "lerp(1)": lambda x, y: torch.lerp(x, y, 1.0),
    "clamp(min=y)": lambda x, y: torch.clamp(x, min=y),
    "clamp(max=y)": lambda x, y: torch.clamp(x, max=y),
    "where(x > y)": lambda x, y: torch.where(x > y, x, y),
    "where(isnan)": lambda x, y: torch.where(x.isnan(), y, x),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -0.0),
    "cdist(p=inf)": lambda x, y: torch.cdist(x[None], y[None], float("inf")) if x.dim() > 1 else x,
}
_LOSSES: dict[str, Function] = {
    name: functools.partial(getattr(F, name), reduction="none")
    for name in """
binary_cross_entropy_with_logits hinge_embedding_loss huber_loss kl_div l1_loss mse_loss
poisson_nll_loss smooth_l1_loss soft_margin_loss
""".split()  # noqa: SIM905 - a list of words
} | {
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(
        x.nan_to_num(0.5).clamp(0, 1), y, reduction="none"
    ),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, -1),
    "pairwise_distance": F.pairwise_distance,
    "kl_div(log_target)": lambda x, y: F.kl_div(x, y, reduction="none", log_target=True),
    "gaussian_nll_loss": lambda x, y: F.gaussian_nll_loss(
        x, y, torch.ones_like(x), full=True, reduction="none"
    ),
}
_TERNARY: dict[str, Function] = {
    "addcdiv": torch.addcdiv,
    "addcmul": torch.addcmul,
    "addcmul(value=0)": lambda x, y, z: torch.addcmul(x, y, z, value=0),
    "clamp(min, max)": lambda x, y, z: torch.clamp(x, y, z),
    "lerp": torch.lerp,
    "where": lambda x, y, z: torch.where(x > 0, y, z),
    "x * y + z": lambda x, y, z: x * y + z,
}
_COMPLEX_BINARY = """
add sub mul div eq ne pow
""".split()  # noqa: SIM905 - a list of words


def _cases(
    operands: str,
    functions: dict[str, Function],
    dtypes: tuple[str, ...] = FLOATS,
    *,
    differentiable: bool = True,
) -> list[Case]:
    return [
        Case(name, operands, function, dtypes, differentiable)
        for name, function in functions.items()
    ]


def _named(names: list[str], module: object = torch) -> dict[str, Function]:
    return {name: getattr(module, name) for name in names}


def _special() -> dict[str, Function]:
    return {f"special.{name}": getattr(torch.special, name) for name in _SPECIAL}


GROUPS = (
    Group(
        "Functions of one number",
        _LAYOUTS,
        (
            *_cases("unary", _named(_UNARY), _ALL),
            *_cases("unary", _named(_QUESTIONS), _ALL, differentiable=False),
            *_cases("unary", _special(), FLOATS, differentiable=False),
            *_cases("unary", _FURTHER_UNARY, FLOATS),
        ),
    ),
    Group("Activations", _LAYOUTS, tuple(_cases("unary", _ACTIVATIONS, _ALL))),
    Group(
        "Conversions", _LAYOUTS, tuple(_cases("unary", _CONVERSIONS, _ALL, differentiable=False))
    ),
    Group(
        "Functions of two and three numbers",
        _LAYOUTS,
        (
            *_cases("binary", _named(_BINARY), _ALL),
            *_cases("binary", _named(_COMPARISONS), _ALL, differentiable=False),
            *_cases("binary", _FURTHER_BINARY, FLOATS),
            *_cases("ternary", _TERNARY, FLOATS),
        ),
    ),
    Group("Losses", _LAYOUTS, tuple(_cases("binary", _LOSSES, (FLOAT32,)))),
    Group(
        "Complex numbers",
        (CONTIGUOUS, FEW),
        (
            *_cases("unary", _named(_COMPLEX), (COMPLEX64,)),
            *_cases("binary", _named(_COMPLEX_BINARY), (COMPLEX64,)),
            *_cases(
                "unary",
                {
                    "conj": lambda x: x.conj() * 1,
                    "real": lambda x: x.real.clone(),
                    "x * 2": lambda x: x * 2,
                    "x * 1j": lambda x: x * 1j,
                    "x + 1": lambda x: x + 1,
                    "x ** 2": lambda x: x**2,
                    "1 / x": lambda x: 1 / x,
                    "sum": lambda x: x.sum(0),
                    "prod": lambda x: x.prod(0),
                    "mean": lambda x: x.mean(0),
                },
                (COMPLEX64,),
            ),
            *_cases(
                "binary",
                {"complex": torch.complex, "polar": torch.polar},
                (FLOAT32,),
            ),
        ),
    ),
)
