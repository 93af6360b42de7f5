"""Small libraries of layers, losses and flows, op by op: sizes change, modes and buffers too.

A library is here for what its code does in Python: contexts over methods, caches that are filled
later, statistics that are written in training, settings read from everywhere.
"""

import random

import pytest
import torch
import training
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def squares(function, *given):
    return function(*given).square().mean()


def rows(*shape):
    """Batches whose first size changes from step to step."""
    return lambda step: (torch.randn(shape[0] + step % 2, *shape[1:]),)


def x_transformers():
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    def make():
        layers = Decoder(
            dim=32, depth=2, heads=2, rotary_pos_emb=True, attn_dropout=0.1, ff_glu=True
        )
        return AutoregressiveWrapper(
            TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)
        )

    def batch(step):
        return (torch.randint(0, 64, (2, 9 + step % 3)),)

    return make, lambda function, x: function(x), batch


class Quantized(nn.Module):
    """Returns what is left of the input, and the quantizer's own loss."""

    def __init__(self, layer, size):
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(8, size), layer, nn.Linear(size, 8)

    def forward(self, x):
        found, *rest = self.layer(self.before(x))
        lost = rest[-1].sum() if len(rest) > 1 else 0
        return (self.after(found) - x).square().mean() + lost


def vector_quantize(kind):
    import vector_quantize_pytorch as library

    def make():
        layer = {
            "one": lambda: library.VectorQuantize(dim=16, codebook_size=8, decay=0.8),
            "residual": lambda: library.ResidualVQ(dim=16, codebook_size=8, num_quantizers=2),
            "scalars": lambda: library.FSQ([8, 5, 5, 5]),
            "without a table": lambda: library.LFQ(codebook_size=16, dim=4),
        }[kind]()
        return Quantized(layer, 16 if kind in ("one", "residual") else 4)

    return make, lambda function, x: function(x), lambda step: (torch.randn(2, 6 + step % 2, 8),)


def local_attention():
    from local_attention import LocalTransformer

    def make():
        options = {"max_seq_len": 64, "causal": True, "local_attn_window_size": 8}
        return LocalTransformer(num_tokens=32, dim=16, depth=1, **options)

    def batch(step):
        return (torch.randint(0, 32, (1 + step % 2, 32)),)

    return make, lambda function, x: function(x, return_loss=True), batch


def nystrom_attention():
    from nystrom_attention import Nystromformer

    make = lambda: Nystromformer(dim=16, depth=1, heads=2, dim_head=8, num_landmarks=4)  # noqa: E731
    return make, squares, lambda step: (torch.randn(1, 8 + 4 * (step % 2), 16),)


def linformer():
    from linformer import Linformer

    return lambda: Linformer(dim=16, seq_len=8, depth=1, heads=2, k=4), squares, rows(2, 8, 16)


def mamba():
    from mambapy.mamba import Mamba, MambaConfig

    def batch(step):
        return (torch.randn(2, 8 + step % 2, 16),)

    return lambda: Mamba(MambaConfig(d_model=16, n_layers=2)), squares, batch


def parallel_scan():
    """Its scan is an autograd.Function that writes to what it made."""
    from mambapy.mamba import Mamba, MambaConfig

    make = lambda: Mamba(MambaConfig(d_model=16, n_layers=1, pscan=True))  # noqa: E731
    return make, squares, lambda step: (torch.randn(2, 8, 16),)


def siren():
    """The Laplacian of a network, as equations have it."""
    from siren_pytorch import SirenNet

    def loss(function, x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        second = [
            torch.autograd.grad(first[:, at].sum(), x, create_graph=True)[0][:, at]
            for at in range(2)
        ]
        return sum(second).square().mean()

    def make():
        return SirenNet(dim_in=2, dim_hidden=16, dim_out=1, num_layers=2, w0_initial=3.0)

    return make, loss, rows(8, 2)


def cosines():
    import torch_dct

    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(8))

        def forward(self, x):
            return torch_dct.idct(torch_dct.dct(x) * self.scale)

    return Filter, squares, rows(3, 8)


def wavelets():
    import ptwt
    import pywt

    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x):
            kind = pywt.Wavelet("db2")
            parts = ptwt.wavedec(self.inner(x), kind, level=2, mode="zero")
            return ptwt.waverec([part.tanh() for part in parts], kind)

    return Filter, squares, rows(2, 16)


def splines_of_paths():
    import torchcde

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 12)

        def forward(self, t, z):
            return self.inner(z).tanh().view(*z.shape[:-1], 4, 3)

    class Driven(nn.Module):
        def __init__(self):
            super().__init__()
            self.field, self.start = Field(), nn.Linear(3, 4)

        def forward(self, x):
            path = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x))
            start = self.start(path.evaluate(path.interval[0]))
            options = {"method": "rk4", "adjoint": False, "options": {"step_size": 1.0}}
            return torchcde.cdeint(X=path, func=self.field, z0=start, t=path.interval, **options)

    return Driven, squares, rows(2, 5, 3)


def flows(kind):
    from nflows import distributions, transforms
    from nflows.flows import Flow

    def make():
        if kind == "splines":
            options = {"num_bins": 4, "tails": "linear", "tail_bound": 3.0}
            layer = transforms.MaskedPiecewiseRationalQuadraticAutoregressiveTransform
            layers = [layer(features=3, hidden_features=8, **options)]
        else:
            layers = [
                transforms.MaskedAffineAutoregressiveTransform(features=3, hidden_features=8),
                transforms.RandomPermutation(features=3),
                transforms.BatchNorm(3),
                transforms.LULinear(3),
            ]
        return Likely(
            Flow(transforms.CompositeTransform(layers), distributions.StandardNormal([3]))
        )

    class Likely(nn.Module):
        def __init__(self, flow):
            super().__init__()
            self.flow = flow

        def forward(self, x):
            return -self.flow.log_prob(x).mean()

    return make, lambda function, x: function(x), rows(6, 3)


def metric_losses(kind):
    from pytorch_metric_learning import losses, miners

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.mine = nn.Linear(8, 4), miners.MultiSimilarityMiner()
            self.loss = {
                "triplets": losses.TripletMarginLoss,
                "angles": lambda: losses.ArcFaceLoss(3, 4),
            }[kind]()

        def forward(self, x, labels):
            found = self.inner(x)
            pairs = (self.mine(found, labels),) if kind == "triplets" else ()
            return self.loss(found, labels, *pairs)

    def batch(step):
        return torch.randn(12, 8), torch.arange(12) % 3

    return Embedded, lambda function, x, labels: function(x, labels), batch


def random_weights():
    import torchbnn

    def make():
        layer = torchbnn.BayesLinear
        return nn.Sequential(layer(0, 0.1, 4, 8), nn.ReLU(), layer(0, 0.1, 8, 2))

    return make, squares, rows(4, 4)


def hyperbolic():
    """Its parameters are of a class of its own."""
    import geoopt

    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.ball = geoopt.PoincareBall()
            points = torch.randn(5, 3) * 0.1
            self.points = geoopt.ManifoldParameter(points, manifold=self.ball)
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            found = self.ball.expmap0(self.inner(x) * 0.1)
            return self.ball.dist(found[:, None], self.points[None])

    return Distances, squares, rows(4, 3)


def splines_on_edges():
    from kan import KAN

    def batch(step):
        return (torch.rand(8 + step % 2, 2) * 2 - 1,)

    return lambda: KAN(width=[2, 3, 1], grid=3, k=3, seed=0, auto_save=False), squares, batch


def dictionaries_of_tensors():
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    def make():
        return TensorDictSequential(
            TensorDictModule(nn.Linear(3, 4), in_keys=["x"], out_keys=["h"]),
            TensorDictModule(nn.Linear(4, 1), in_keys=["h"], out_keys=["y"]),
        )

    def batch(step):
        return (TensorDict({"x": torch.randn(4 + step % 2, 3)}, batch_size=[4 + step % 2]),)

    return make, lambda function, given: function(given)["y"].square().mean(), batch


CASES = {
    "x-transformers": x_transformers,
    "vector-quantize-pytorch": lambda: vector_quantize("one"),
    "vector-quantize-pytorch residual": lambda: vector_quantize("residual"),
    "vector-quantize-pytorch scalars": lambda: vector_quantize("scalars"),
    "vector-quantize-pytorch without a table": lambda: vector_quantize("without a table"),
    "local-attention": local_attention,
    "nystrom-attention": nystrom_attention,
    "linformer": linformer,
    "mambapy": mamba,
    "mambapy parallel scan": parallel_scan,
    "siren-pytorch Laplacian": siren,
    "torch-dct": cosines,
    "ptwt": wavelets,
    "torchcde": splines_of_paths,
    "nflows": lambda: flows("affine"),
    "nflows splines": lambda: flows("splines"),
    "pytorch-metric-learning triplets": lambda: metric_losses("triplets"),
    "pytorch-metric-learning angles": lambda: metric_losses("angles"),
    "torchbnn": random_weights,
    "geoopt": hyperbolic,
    "pykan": splines_on_edges,
    "tensordict": dictionaries_of_tensors,
}


@pytest.mark.parametrize("library", CASES)
def test_layers(library, monkeypatch):
    monkeypatch.setattr(training, "BACKEND", training.OP_BY_OP)
    make, loss, batch = CASES[library]()

    def seeded():
        random.seed(0)  # some choose layers by Python's
        return make()

    training.check(seeded, loss, batch, programs=3, tolerance=1e-3)
