"""Copies of tensors to other strides, as an executable's results are mended."""

import pytest
import torch

from funcaot._torch.tensors.storages import copied_to

CASES = {
    "transposed": (torch.arange(6.0).reshape(2, 3), (1, 2), 0),
    "expanded": (torch.arange(3.0).expand(2, 3).contiguous(), (0, 1), 2),
    "expanded twice": (torch.full((2, 3, 4), 5.0), (0, 1, 0), 0),
    "of one element": (torch.arange(3.0).reshape(1, 3), (0, 1), 1),
    "empty": (torch.empty(0, 3), (0, 1), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_copies(name):
    """To write to each element of an expanded tensor was an error of torch."""
    tensor, stride, offset = CASES[name]
    made = copied_to(tensor, stride, offset)
    assert torch.equal(made, tensor)
    assert (made.stride(), made.storage_offset()) == (stride, offset)
    assert made.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
