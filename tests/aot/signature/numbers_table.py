"""Functions of a tensor and a number, for the tests of open numbers.

Each stands with the programs that it may take for the values of `test_numbers`: two where it only
computes with the number, three where it branches on it, None where each value has its own.
"""

import copy
import decimal
import fractions
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import funcaot


class Scaled(torch.autograd.Function):
    """It keeps the number on its context."""

    @staticmethod
    def forward(x, number):
        return x * number

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.number = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.number, None


def written(x, a):
    y = x.clone()
    y[0] = a
    return y.mul_(a).add_(x, alpha=a)


def narrow(x, a):
    """As optimizers step in half precision."""
    with torch.no_grad():
        y, z, wide = x.bfloat16(), x.bfloat16().sin(), x.clone()
        y.mul_(1 - a).add_(z, alpha=a).lerp_(z, a).addcdiv_(z, z.abs() + 1, value=a)
        y += a
        return y, wide.add_(z, alpha=a), x.half().addcmul(x.half(), x.half(), value=a)


def normalized(x, a):
    statistics = [torch.full((1,), start, dtype=x.dtype) for start in (0.0, 1.0, 0.5, 2.0)]
    y = torch.nn.functional.batch_norm(x[:, None], *statistics[:2], training=True, momentum=a)
    z = torch.nn.functional.instance_norm(x[None, None], *statistics[2:], momentum=a / 2)
    return y, z, *statistics


def hooked(x, a):
    y = x.sin()
    y.register_hook(lambda gradient: gradient * a)
    return y * 2


def checkpointed(x, a):
    body = lambda z: z.sin() * a  # noqa: E731
    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


def classed(x, a):
    return x * 2 if type(a) is float else x


def matched(x, a):
    match a:
        case float():
            return x * a
    return x


COMPUTED: dict[str, Callable[[Any, float], Any]] = {
    "add": lambda x, a: x + a,
    "rsub": lambda x, a: a - x,
    "div": lambda x, a: x / a,
    "rdiv": lambda x, a: a / x,
    "arithmetic": lambda x, a: x * (1 - a) + a * a * x / (a + 2) - (-a) + abs(a - 1) * x,
    "infinite": lambda x, a: x * (a * float("inf")),
    "literals": lambda x, a: x * (a * 3) * (2 - a) / 7,
    "class": lambda x, a: x * 2 if isinstance(a, float) else x,
    "type": classed,
    "match": matched,
    "clamp": lambda x, a: x.clamp(-a, a + 1),
    "clamp_min": lambda x, a: x.clamp(min=a),
    "where": lambda x, a: torch.where(x > a, x, a),
    "where_numbers": lambda x, a: (torch.where(x > 0, a, 0), torch.where(x > a, -a, 1.5), x * a),
    "full": lambda x, a: torch.full((3,), a) + x[:3],
    "tensor": lambda x, a: torch.tensor(a) * x,
    "as_tensor": lambda x, a: torch.as_tensor(a) * x,
    "scalar_tensor": lambda x, a: torch.scalar_tensor(a) * x,
    "list": lambda x, a: torch.tensor([a, 2.0, 3 * a]) * x[:3],
    "list_double": lambda x, a: torch.as_tensor((a, 2), dtype=torch.float64) * x[:2],
    "full_like": lambda x, a: torch.full_like(x, a) * x,
    "full_like_half": lambda x, a: torch.full_like(x, fill_value=a, dtype=torch.half) + x,
    "full_like_strides": lambda x, a: torch.full_like(torch.stack([x, x]).t(), a) + x[:, None],
    "new_full": lambda x, a: x.new_full((3,), a) + x[:3],
    "new_full_double": lambda x, a: x.new_full(fill_value=a, size=(), dtype=torch.float64) * x,
    "new_tensor": lambda x, a: x.new_tensor(a) * x,
    "written_later": lambda x, a: torch.full_like(x, a).mul_(x),
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a),
    "lerp": lambda x, a: x.lerp(x.sin(), a),
    "add_alpha": lambda x, a: torch.add(x, x.sin(), alpha=a),
    "addcmul": lambda x, a: torch.addcmul(x, x, x, value=a),
    "addcdiv": lambda x, a: torch.addcdiv(x, x, x + 9, value=a),
    "written": written,
    "narrow": narrow,
    "bfloat16": lambda x, a: x.to(torch.bfloat16) * a,
    "half": lambda x, a: x.half() + a,
    "int64": lambda x, a: (x > 0).long() * a,
    "bool": lambda x, a: (x > 0) + a,
    "int32": lambda x, a: x.int() / a,
    "complex": lambda x, a: torch.complex(x, x) * a,
    "float64": lambda x, a: x.double() * a,
    "half_number": lambda x, a: x.sum().half() * a,
    "rsub_alpha": lambda x, a: torch.rsub(x, x.sin(), alpha=a),
    "foreach": lambda x, a: torch._foreach_mul([x, x], a)[1],
    "foreach_addcmul": lambda x, a: torch._foreach_addcmul([x], [x], [x.sin()], a)[0],
    "clamp_max": lambda x, a: x.clamp_max(a) + torch.clamp_min(x, a),
    "float": lambda x, a: x * float(a),
    "half_divided": lambda x, a: x * (a / x.detach().half()),
    "compared": lambda x, a: x * (x < a),
    "int_compared": lambda x, a: x * ((x * 3).long() > a),
    "bfloat16_compared": lambda x, a: x * (x.bfloat16() > a),
    "compares": lambda x, a: x * (a <= x),
    "grad": lambda x, a: torch.func.grad(lambda z: (z.sin() * a).sum())(x),
    "vmap": lambda x, a: torch.vmap(lambda z: z * a)(x),
    "vmap_none": lambda x, a: torch.vmap(lambda z, b: z * b, in_dims=(0, None))(x, a),
    "checkpoint": checkpointed,
    "sum": lambda x, a: x * sum([a, 1.0]),
    "copy": lambda x, a: x * copy.deepcopy(a),
    "base": lambda x, a: (a * a + 0.5) ** x,
    "power": lambda x, a: (x.abs() ** (a + 7.25), x.abs().pow_(exponent=a + 4.1)),
    "momentum": normalized,
    "sine": lambda x, a: x * math.sin(a),
    "square": lambda x, a: x * a**2,
    "round": lambda x, a: x * round(a, 1),
    "floor": lambda x, a: x * (a // 0.2) + a % 0.2,
    "returned": lambda x, a: (x * a, {"a": a, "list": [a * a, -a]}),
    "clipped": lambda x, a: x * max(0.0, min(1.0, a / 2)),
    "divmod": lambda x, a: x * divmod(a, 0.3)[0] + divmod(a, 0.3)[1],
    "floor in grad": lambda x, a: torch.func.grad(lambda z: (z * math.floor(a)).sin().sum())(x),
    "square in vmap": lambda x, a: torch.vmap(lambda z: z * a**2)(x),
    "inner": funcaot.compile(lambda x, a: x * math.cos(a), backend="eager"),
}
BRANCHES: dict[str, Callable[[Any, float], Any]] = {
    "branch": lambda x, a: x * a if a > 0.5 else x - a,
    "truth": lambda x, a: x * a if a else x,
    "max": lambda x, a: x * max(a, 0.5),
    "sorted": lambda x, a: x * sorted([a, 0.3])[0] - sorted([a, 0.3])[1],
    "equal": lambda x, a: x if a == 0.25 else x * a,
}
SETTLED: dict[str, Callable[[Any, float], Any]] = {
    "easy_power": lambda x, a: x.abs() ** a,
    "format": lambda x, a: x * len(f"{a:.6f}"),
    "text": lambda x, a: x * len(str(a)),
    "repr": lambda x, a: x * len(repr(a)),
    "percent": lambda x, a: x * len("%g" % a),  # noqa: UP031
    "key": lambda x, a: x * {0.5: 2}.get(a, 3),
    "set": lambda x, a: x * (2 if a in {0.25, 0.5} else 1),
    "own_key": lambda x, a: x * {a: 2.0}[a],
    "index": lambda x, a: x[int(a * 4) :],
    "numpy": lambda x, a: x * float(np.sqrt(np.abs(a))),
    "array": lambda x, a: x * float((np.ones(2) * a).sum()),
    "numpy_scalar": lambda x, a: x * float(a * np.float64(2.0)),
    "decimal": lambda x, a: x * float(decimal.Decimal(a)),
    "fraction": lambda x, a: x * float(fractions.Fraction(a)),
    "pickle": lambda x, a: x * pickle.loads(pickle.dumps(a)),
    "method": lambda x, a: x * (a.is_integer() + 1),
    "hex": lambda x, a: x * len(a.hex()),
    "function": lambda x, a: Scaled.apply(x, a) * a,
    "hook": hooked,
    "norm": lambda x, a: x.norm(1 + a),
    "celu": lambda x, a: torch.nn.functional.celu(x, a),
    "linspace": lambda x, a: torch.linspace(0, a, 3) + x[:3],
    "arange": lambda x, a: torch.arange(0, a, 0.05).sum() + x,
}
WHOLE: dict[str, tuple[Callable[[Any, int], Any], int | None]] = {
    "factor": (lambda x, n: x * n - n, 2),
    "divided": (lambda x, n: x / n + (n - x) * (n + 1), 2),
    "reciprocal": (lambda x, n: n / (x.abs() + 1), 2),
    "size": (lambda x, n: x + torch.zeros(n, 1), 2),
    "view": (lambda x, n: x.reshape(n, -1) * 2, 2),
    "slice": (lambda x, n: x[:n] * 2, 2),
    "roll": (lambda x, n: x.roll(n), 2),
    "expand": (lambda x, n: x.expand(n, 24).clone(), 2),
    "branch": (lambda x, n: x * n if n > 6 else x - n, 3),
    "class": (lambda x, n: x * 2 if isinstance(n, int) else x, 2),
    "returned": (lambda x, n: (x * n, n + 1), 2),
    "range": (lambda x, n: sum(x * i for i in range(n)), None),
    "item": (lambda x, n: x * [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13][n], None),
    "text": (lambda x, n: x * len(f"{n}") + int(str(n)), None),
    "key": (lambda x, n: x * {3: 2}.get(n, 3), None),
    "quotient": (lambda x, n: x * (1 / n), 2),
    "power": (lambda x, n: x * n**3, 2),
    "decay": (lambda x, n: x * (1 - 0.9**n), 2),
    "warm-up": (lambda x, n: x * min(1.0, n / 4), 2),
    "cosine": (lambda x, n: x * math.cos(math.pi * min(n, 6) / 6), 2),
    "remainder": (lambda x, n: x[n % 4 : n % 4 + 4] * (n // 3), 2),
    "least": (lambda x, n: x[: min(n + 1, 5)] * max(n, 4), 3),
    "alpha": (lambda x, n: x.clamp(max=n).add(x.sin(), alpha=n), 2),
    "with a size": (lambda x, n: x * (n % x.shape[0]) + x[: min(n, x.shape[0])].sum(), 3),
    "bits": (lambda x, n: x * (n & 1) + n.bit_length(), None),
    "type": (lambda x, n: x * 2 if type(n) is int else x, 2),
    "dimension": (lambda x, n: x.reshape(2, 3, 2, 2).sum(n % 3), None),
    "float": (lambda x, n: x * float(n), 2),
    "function": (lambda x, n: Scaled.apply(x, n) * n, None),
    "array": (lambda x, n: x * float(np.arange(n).sum()), None),
}
