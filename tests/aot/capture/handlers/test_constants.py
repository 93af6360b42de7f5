"""Arguments that torch differentiates by nothing, and cosine_similarity, under transforms."""

import pytest
import torch
import torch.nn.functional as F

import funcaot

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
CLASSES, WEIGHT = torch.tensor([0, 2, 1]), torch.arange(1.0, 5.0, dtype=torch.float64)
FUNCTIONS = {
    "nll_loss": lambda x: F.nll_loss(x, CLASSES, weight=WEIGHT),
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES, WEIGHT / WEIGHT.sum()),
    "binary": lambda x: F.binary_cross_entropy(x.sigmoid(), (Y > 0).double(), weight=WEIGHT),
    "logits": lambda x: F.binary_cross_entropy_with_logits(
        x, (Y > 0).double(), weight=WEIGHT, pos_weight=WEIGHT
    ),
    "multi_margin": lambda x: F.multi_margin_loss(x, CLASSES, weight=WEIGHT),
    "soft_margin": lambda x: F.soft_margin_loss(x, Y.sign()),
    "batch_norm": lambda x: F.batch_norm(x, WEIGHT * 0.1, WEIGHT, training=False),
    "cosine_similarity": lambda x: F.cosine_similarity(x, Y[:1]),
}


def loss(function):
    return lambda x: (function(x) * 1.3).sin().sum()


def pushed(function, x):
    return torch.func.jvp(function, (x,), (x.cos(),))[1]


def product(function, x):
    return torch.func.jvp(torch.func.grad(loss(function)), (x,), (x.cos(),))[1]


def gradient_of_a_tangent(function, x):
    return torch.func.grad(lambda x: torch.func.jvp(loss(function), (x,), (Y,))[1])(x)


ASKED = {"pushed": pushed, "product": product, "gradient_of_a_tangent": gradient_of_a_tangent}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_under_forward_mode(name, asked):
    """A warning, which is an error here, would say that the call ran uncompiled."""
    compiled = funcaot.compile(FUNCTIONS[name], backend="eager")
    for x in (X, X.flip(0)):
        with funcaot.install():
            wanted = ASKED[asked](FUNCTIONS[name], x)
        torch.testing.assert_close(ASKED[asked](compiled, x), wanted)


def test_weights_that_require_grad_are_refused_as_in_eager():
    weight = WEIGHT.clone().requires_grad_()

    def run(x):
        return F.nll_loss(x, CLASSES, weight=weight)

    for function in (run, funcaot.compile(run, backend="eager")):
        with pytest.raises(RuntimeError, match="not differentiable with respect to argument"):
            function(X)


@pytest.mark.parametrize("scale", [0.0, 1e-10, 1.0])
def test_cosine_similarity_of_short_vectors(scale):
    """Below eps torch divides by eps, and the gradient is that of the norm all the same."""

    def both(function):
        x = (X * scale).requires_grad_()
        value = function(x)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    function = FUNCTIONS["cosine_similarity"]
    found = both(funcaot.compile(function, backend="eager"))
    for one, other in zip(found, both(function), strict=True):
        assert torch.equal(one, other)
