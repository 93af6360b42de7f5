"""Functions that are right, which ``check`` took for wrong, and what it says of random ones."""

import pytest
import torch

from funcaot.testing import check
from funcaot.testing.command import main


class Waves(torch.autograd.Function):
    """The second output is even, so its slope near zero is hidden by rounding."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, sine, cosine):
        (x,) = ctx.saved_tensors
        return sine * x.cos() - cosine * x.sin()


class Sorted(torch.autograd.Function):
    """At ties, tangents come in the order of the indices."""

    @staticmethod
    def forward(ctx, x):
        values, index = x.sort(-1)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(index)
        return values, index

    @staticmethod
    def backward(ctx, grad, _):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, index, grad)


class Total(torch.autograd.Function):
    """A scalar and another output, which a Hessian of no elements batches."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sum(), x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, total, sine):
        (x,) = ctx.saved_tensors
        return total * torch.ones_like(x) + sine * x.cos()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent.sum(), tangent * x.cos()


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept = torch.rand_like(x) > 0.5
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def test_it_is_right():
    tiny = torch.tensor([1e-8, -3e-6, 1e-4], dtype=torch.float64)
    result = check(Waves, [tiny], transforms=["jvp_rule", "gradient"], backend=None)
    assert {row.status for row in result.rows} == {"passes"}
    tied = torch.full((2, 3), 0.7, dtype=torch.float64)
    assert check(Sorted, [tied], transforms=["jvp_rule"], backend=None).ok
    # The opposite order of tangents is no order of these.
    broken = type("Broken", (Sorted,), {"backward": staticmethod(lambda ctx, g, _: g * 2)})
    assert not check(broken, [tied], transforms=["jvp_rule"], backend=None).ok


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_a_jacobian_of_nothing_is_not_held_against_it(shape):
    given = [torch.rand(shape, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)]
    assert check(Total, given, transforms=["call", "hessian", "gradient"], backend=None).ok


def test_random_numbers_are_named():
    given = torch.rand(2, 3, dtype=torch.float64)
    result = check(Dropped, given, transforms=["jacfwd", "gradient"], backend=None)
    assert result.row("jacfwd").status == "wrong"
    assert "draws random numbers" in result.row("jacfwd").remedy


def test_progress_and_a_remedy_for_what_is_skipped(tmp_path, capsys):
    source = """
import torch

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad

class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, grad):
        return grad / 2
"""
    file = tmp_path / "in_place_functions.py"
    file.write_text(source)
    assert main(["check", str(file), "--transforms", "gradient", "--backend", "none"]) == 0
    output, progress = capsys.readouterr()
    assert "Doubled: not checked" in output
    assert "Doubled.apply(x.clone())" in output
    assert "checking in_place_functions:Halved (2 of 2)" in progress
