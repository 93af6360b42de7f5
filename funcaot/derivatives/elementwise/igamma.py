"""``igamma`` and ``igammac`` by their first argument: the integral, on nodes of Gauss.

With ``t = x exp(v)`` the integral of ``t ** (a - 1) exp(-t)`` is one of the exponential of a
concave function. Of its two parts the one is computed over which that function falls from the
boundary on, so that a small part is right to its own last digits.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

_NODES = 64
# Where the exponential is nothing beside what it was at the boundary.
_NOTHING = 42.0


@functools.cache
def _nodes() -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss and Legendre between 0 and 1."""
    places, weights = [], []
    for index in range(_NODES):
        x = math.cos(math.pi * (index + 0.75) / (_NODES + 0.5))
        for _ in range(8):
            before, now = 1.0, x
            for k in range(2, _NODES + 1):
                before, now = now, ((2 * k - 1) * x * now - (k - 1) * before) / k
            slope = _NODES * (x * now - before) / (x * x - 1)
            x -= now / slope
        places.append((1 + x) / 2)
        weights.append(1 / ((1 - x * x) * slope * slope))
    return places, weights


def _fallen(a: Tensor, x: Tensor, sign: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """How far the exponent has fallen at a distance from the boundary, and how fast it falls."""
    grown = torch.expm1(sign * w)
    return x * grown - a * sign * w, sign * (x * (grown + 1) - a)


def _width(a: Tensor, x: Tensor, sign: Tensor) -> Tensor:
    """How far from the boundary the exponential is nothing; no derivative goes through it."""
    # Newton's method on a convex function, begun where it is too large.
    to_left = torch.minimum(2 + _NOTHING / a, (2 * _NOTHING / a).sqrt() * 2 + 2 * _NOTHING / a)
    to_right = torch.minimum((2 * _NOTHING / x).sqrt(), torch.log1p(2 * _NOTHING / x) + 2)
    width = torch.where(sign < 0, to_left + _NOTHING, to_right)
    for _ in range(12):
        fallen, slope = _fallen(a, x, sign, width)
        width = width - (fallen - _NOTHING) / slope
    return width


def _integral(a: Tensor, x: Tensor, sign: Tensor) -> Tensor:
    """From the boundary on, to the left or to the right, in units of the value there."""
    width = _width(a.detach(), x.detach(), sign)
    places, weights = (torch.tensor(values, dtype=a.dtype, device=a.device) for values in _nodes())
    fallen, _ = _fallen(
        a.unsqueeze(-1), x.unsqueeze(-1), sign.unsqueeze(-1), width.unsqueeze(-1) * places
    )
    return width * (torch.exp(-fallen) * weights).sum(-1)


def _parts(a: Tensor, x: Tensor, *, upper: bool) -> Tensor:
    dtype = torch.promote_types(a.dtype, x.dtype)
    a, x = torch.broadcast_tensors(a.double(), x.double())
    usual = (a >= 0) & (x > 0) & a.isfinite() & x.isfinite()
    # A step up where the integrand has no maximum, and what the step adds.
    small = a < 1
    given, boundary = torch.where(usual, a, 1.0), torch.where(usual, x, 1.0)
    raised = torch.where(small, given + 1, given)
    right = boundary >= raised
    sign = torch.where(right, 1.0, -1.0).to(a.dtype)
    logarithm = boundary.log()
    front = torch.exp(raised * logarithm - boundary - torch.lgamma(raised))
    part = front * _integral(raised, boundary, sign)
    added = torch.exp(given * logarithm - boundary - torch.lgamma(given + 1))
    added = torch.where(small, added, 0.0)
    found = torch.where(right, part - added, 1 - part - added)
    if not upper:
        found = torch.where(right, 1 - part + added, part + added)
    # At the ends of the domain the function is constant; outside of it there is none.
    outside = (a < 0) | (x < 0) | a.isnan() | x.isnan()
    return torch.where(usual, found, torch.where(outside, math.nan, 0.0)).to(dtype)


def _lower(a: Tensor, x: Tensor) -> Tensor:
    return _parts(a, x, upper=False)


def _upper(a: Tensor, x: Tensor) -> Tensor:
    return _parts(a, x, upper=True)


for _op, _function in (
    (torch.ops.aten.igamma.default, _lower),
    (torch.ops.aten.igammac.default, _upper),
):
    register(
        Derivative(
            _op,
            _function,
            jvp=transposed(_function),
            reverse=False,
            lacking=frozenset({"self"}),
        )
    )
