"""A tensor of a call compared with what an artifact takes; ``load`` makes a check for each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from funcaot._torch.tensors import artifacts
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.exported.signature import ArtifactSignature, TensorSignature


class Check:
    """Compares a tensor of a call with what the artifact takes."""

    def __init__(self, tensor: TensorSignature, signature: ArtifactSignature, what: str) -> None:
        self.tensor = tensor
        self._what = what
        self._dtype = getattr(torch, tensor.dtype)
        self._device = torch.device(tensor.device)
        self._shape = tensor.shape
        self._dims = signature.dims
        self._exact = signature.exact
        self._usual = tensor.order == tuple(range(len(tensor.order)))

    def __call__(self, given: Any, sizes: dict[str, int]) -> None:
        """Compare, and note the sizes of open dims.

        Raises:
            ArgumentError: It says what differs.
            UnsupportedError: If a derivative is asked for.
        """
        if not isinstance(given, torch.Tensor) or given.layout is not torch.strided:
            got = given.layout if isinstance(given, torch.Tensor) else type(given).__name__
            raise self._refused("a tensor", str(got), "pass a dense tensor.")
        found = artifacts.class_in_the_way(given)
        if found is not None:
            raise self._refused("a plain tensor", found, "pass what it stands for as one.")
        if given.dtype is not self._dtype:
            raise self._differs(given, f"pass it as {self.tensor.name}.to({self._dtype}).")
        if given.device != self._device:
            raise self._differs(given, f"move it there: .to({self.tensor.device!r}).")
        shape = given.shape
        if len(shape) != len(self._shape):
            raise self._differs(given, "pass a tensor with as many dimensions.")
        for wanted, size in zip(self._shape, shape, strict=True):
            if wanted != size and (
                isinstance(wanted, int) or sizes.setdefault(wanted, size) != size
            ):
                raise self._wrong_size(given, wanted, sizes)
            if not isinstance(wanted, int):
                low, high = self._dims[wanted]
                if not low <= size <= high:
                    raise self._out_of_bounds(given, wanted)
        if self._exact and not self._lies_right(given):
            raise self._refused(
                f"{self.tensor} that fills its memory in the order {self.tensor.order} of its "
                "dimensions, since what is computed depends on strides",
                f"strides {given.stride()}",
                "pass a copy: .contiguous(), if the function was exported with such a tensor.",
            )
        if given.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{self._what} was given {self.tensor.name}, which requires grad, and computes "
                "values only: what it returns has no derivative.",
                remedy="call it in torch.no_grad(), or pass a detached tensor; to have the "
                "derivative, export a function that computes it.",
            )

    def laid_out(self, given: torch.Tensor) -> torch.Tensor:
        """The tensor, copied if it doesn't lie in memory as the code reads it."""
        if given.is_conj() or given.is_neg():
            given = given.resolve_conj().resolve_neg()
        if self._lies_right(given):
            return given
        if self._usual:
            return given.contiguous()
        order = self.tensor.order
        back = sorted(range(len(order)), key=order.__getitem__)
        return given.permute(order).contiguous().permute(back)

    def _lies_right(self, given: torch.Tensor) -> bool:
        """Whether a tensor lies in memory as the code reads it."""
        return (given if self._usual else given.permute(self.tensor.order)).is_contiguous()

    def _wrong_size(
        self, given: torch.Tensor, wanted: int | str, sizes: Mapping[str, int]
    ) -> ArgumentError:
        if isinstance(wanted, str):
            remedy = f"{wanted!r} is {sizes[wanted]} in an earlier tensor: pass tensors that agree."
        else:
            remedy = (
                f"pass a tensor with size {wanted} there; to leave the size open, export with a "
                "torch.export.Dim for it in dynamic_shapes."
            )
        return self._differs(given, remedy)

    def _out_of_bounds(self, given: torch.Tensor, name: str) -> ArgumentError:
        low, high = self._dims[name]
        bounds = f"from {low} to {high}" if high < sys.maxsize else f"at least {low}"
        return self._refused(
            f"{self.tensor} with {name} {bounds}",
            str(list(given.shape)),
            "export the function with wider bounds; a size of 0 or 1 needs an artifact of its own.",
        )

    def _differs(self, given: torch.Tensor, remedy: str) -> ArgumentError:
        dtype = str(given.dtype).removeprefix("torch.")
        got = f"{dtype}{list(given.shape)}"
        if given.device != self._device:
            got += f" on {given.device}"
        return self._refused(str(self.tensor), got, remedy)

    def _refused(self, expected: str, got: str, remedy: str) -> ArgumentError:
        return ArgumentError(
            f"{self._what} can't take what it was given as {self.tensor.name}.",
            expected=expected,
            got=got,
            remedy=remedy,
        )
