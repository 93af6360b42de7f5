"""``unique`` and ``unique_consecutive``: each value is the mean of the elements that it stands for.

Elements that are equal share what arrives, as the largest ones of ``amax`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register

aten = torch.ops.aten
# Where a value stands for each element, and for how many elements it stands.
Places = Callable[..., tuple[Tensor, Tensor]]


def _of_sorted(x: Tensor, sort: bool = True, *_: bool) -> tuple[Tensor, Tensor]:
    _, places, counts = aten._unique2(x.detach(), sort, True, True)
    return places, counts


def _of_sorted_slices(x: Tensor, dim: int, sort: bool = True, *_: bool) -> tuple[Tensor, Tensor]:
    _, places, counts = aten.unique_dim(x.detach(), dim, sort, True, True)
    return places, counts


def _of_runs(
    x: Tensor, inverse: bool = False, count: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor]:
    _, places, counts = aten.unique_consecutive(x.detach(), True, True, dim)
    return places, counts


def _of_runs_of_slices(x: Tensor, dim: int, *_: bool) -> tuple[Tensor, Tensor]:
    _, places, counts = aten.unique_dim_consecutive(x.detach(), dim, True, True)
    return places, counts


def _rules(places_of: Places, dim_of: Callable[..., int | None]) -> dict[str, Any]:
    def vjp(
        cotangents: Sequence[Tensor | None], x: Tensor, *rest: Any, **keywords: Any
    ) -> Tensor | None:
        arriving = cotangents[0]
        if arriving is None:
            return None
        places, counts = places_of(x, *rest, **keywords)
        dim = dim_of(*rest, **keywords)
        if dim is None:
            return (arriving / counts)[places.reshape(x.shape)]
        return _shared(arriving, counts, dim).index_select(dim, places)

    def jvp(tangents: Sequence[Any], x: Tensor, *rest: Any, **keywords: Any) -> Tensor | None:
        moved = tangents[0]
        places, counts = places_of(x, *rest, **keywords)
        dim = dim_of(*rest, **keywords)
        if dim is None:
            moved, places, dim = moved.reshape(-1), places.reshape(-1), 0
        shape = list(moved.shape)
        shape[dim] = counts.shape[0]
        return _shared(moved.new_zeros(shape).index_add(dim, places, moved), counts, dim)

    return {"vjp": vjp, "jvp": jvp}


def _shared(values: Tensor, counts: Tensor, dim: int) -> Tensor:
    along = [1] * values.dim()
    along[dim] = -1
    return values / counts.view(along)


def _no_dim(*_: Any, **__: Any) -> None:
    return None


def _of_the_call(dim: int, *_: Any, **__: Any) -> int:
    return dim


def _if_given(inverse: bool = False, count: bool = False, dim: int | None = None) -> int | None:
    return dim


for _op, _places, _dim in (
    (aten._unique2.default, _of_sorted, _no_dim),
    (aten._unique.default, _of_sorted, _no_dim),
    (aten.unique_dim.default, _of_sorted_slices, _of_the_call),
    (aten.unique_consecutive.default, _of_runs, _if_given),
    (aten.unique_dim_consecutive.default, _of_runs_of_slices, _of_the_call),
):
    register(Derivative(_op, **_rules(_places, _dim)))
