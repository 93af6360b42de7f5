"""Losses and reductions of no elements: values, gradients and second derivatives as in eager."""

import pytest
import torch
import torch.nn.functional as F

import funcaot


def classes(x):
    return torch.zeros(x.shape[0], dtype=torch.long)


LOSSES = {
    "mse": lambda x, r: F.mse_loss(x, x * 2, reduction=r),
    "l1": lambda x, r: F.l1_loss(x, x * 2, reduction=r),
    "smooth_l1": lambda x, r: F.smooth_l1_loss(x, x * 2, reduction=r),
    "huber": lambda x, r: F.huber_loss(x, x * 2, reduction=r),
    "bce": lambda x, r: F.binary_cross_entropy(x.sigmoid(), torch.ones_like(x), reduction=r),
    "bce logits": lambda x, r: F.binary_cross_entropy_with_logits(x, x.detach(), reduction=r),
    "kl": lambda x, r: F.kl_div(x, torch.ones_like(x), reduction=r),
    "cross entropy": lambda x, r: F.cross_entropy(x, classes(x), reduction=r),
    "of probabilities": lambda x, r: F.cross_entropy(x, torch.ones_like(x), reduction=r),
    "smoothed": lambda x, r: F.cross_entropy(x, classes(x), reduction=r, label_smoothing=0.1),
    "nll": lambda x, r: F.nll_loss(x, classes(x), reduction=r),
    "poisson": lambda x, r: F.poisson_nll_loss(x, torch.ones_like(x), reduction=r),
    "gaussian": lambda x, r: F.gaussian_nll_loss(x, x.detach(), torch.ones_like(x), reduction=r),
    "hinge": lambda x, r: F.hinge_embedding_loss(x, torch.ones_like(x), reduction=r),
    "soft margin": lambda x, r: F.soft_margin_loss(x, torch.ones_like(x), reduction=r),
    "multilabel": lambda x, r: F.multilabel_soft_margin_loss(x, torch.ones_like(x), reduction=r),
    "cosine": lambda x, r: F.cosine_embedding_loss(x, x * 2, torch.ones(len(x)), reduction=r),
    "ranking": lambda x, r: F.margin_ranking_loss(x, x * 2, torch.ones_like(x), reduction=r),
    "triplet": lambda x, r: F.triplet_margin_loss(x, x * 2, x * 3, reduction=r),
}
REDUCTIONS = {
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(),
    "nansum": lambda x: x.nansum(),
    "nanmean": lambda x: x.nanmean(),
    "logsumexp": lambda x: x.logsumexp(0),
    "median": lambda x: x.median(),
    "median of rows": lambda x: x.median(1)[0],
    "max": lambda x: x.max(),
    "amax": lambda x: x.amax(0),
    "max of rows": lambda x: x.max(1)[0],
    "norm": lambda x: x.norm(),
    "mean of columns": lambda x: x.mean(0),
    "mean of rows": lambda x: x.mean(1),
    "var of columns": lambda x: x.var(0),
    "softmax": lambda x: x.softmax(0),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "product": lambda x: x.t() @ x,
    "by a size": lambda x: (x * x).sum() / (x.shape[0] + 1),
}
CASES = {
    **{
        f"{name}, {r}": lambda x, loss=loss, r=r: loss(x, r)
        for name, loss in LOSSES.items()
        for r in ("mean", "sum", "none")
    },
    **REDUCTIONS,
}


def outcome(function, *, twice):
    x = torch.ones(0, 4, dtype=torch.float64, requires_grad=True)
    found = []
    try:
        value = function(x)
        found.append((value.shape, str(value.tolist()), value.requires_grad))
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=twice)
        found.append((first.shape, first.requires_grad))
        if first.requires_grad:
            (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
            found.append(None if second is None else second.shape)
    except (RuntimeError, IndexError) as error:
        found.append(type(error))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("twice", [False, True], ids=["first order", "second order"])
def test_no_elements(case, twice):
    function = CASES[case]
    compiled = funcaot.compile(function, backend="eager")
    wanted = outcome(function, twice=twice)
    for _ in range(2):
        assert outcome(compiled, twice=twice) == wanted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["mse", "smooth_l1", "huber"])
def test_no_elements_on_the_default_backend(loss):
    function = CASES[f"{loss}, mean"]
    compiled = funcaot.compile(function)
    assert outcome(compiled, twice=True) == outcome(function, twice=True)
    x = torch.linspace(-2, 2, 8).view(2, 4).requires_grad_()
    (wanted,) = torch.autograd.grad(function(x), x)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, wanted)
