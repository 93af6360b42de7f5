"""``grid_sampler`` of two and three dimensions in forward mode."""

from __future__ import annotations

import torch

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import transposed

aten = torch.ops.aten

for _op in (
    aten.grid_sampler_2d.default,
    aten.grid_sampler_2d_backward.default,
    aten.grid_sampler_3d.default,
    aten.grid_sampler_3d_backward.default,
):
    register(Derivative(_op, jvp=transposed(_op), reverse=False))
