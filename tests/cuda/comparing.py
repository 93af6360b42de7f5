"""Calls with and without the compiler, compared with all that a caller can see of a result."""

import torch
import torch.utils._pytree as pytree


def look(tensor):
    """Values, and what else differs silently: layout, dtype, device, autograd."""
    return (
        tensor.detach().clone(),
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
    )


def looks(tree):
    return [look(leaf) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def versions(tree):
    return [each._version for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def close(found, expected, tolerance=None):
    """Compare what two calls gave; ``tolerance`` is relative to the largest number."""
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one[1:] == other[1:], f"result {number}: {one[1:]}, eager has {other[1:]}"
        scale = 1 + other[0].abs().max().item() if other[0].numel() else 1.0
        bound = {torch.float64: 1e-10, torch.float32: 1e-5}.get(other[2], 3e-2)
        torch.testing.assert_close(
            one[0].double() / scale,
            other[0].double() / scale,
            rtol=0,
            atol=tolerance or bound,
            equal_nan=True,
        )
