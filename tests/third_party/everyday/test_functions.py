"""Small libraries with Functions of their own, and others of layers: as in ``test_layers``."""

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


def invertible():
    """Its Function asks whether ``backward()`` was called."""
    import memcnn

    def body():
        return nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))

    def make():
        coupling = memcnn.AdditiveCoupling(Fm=body(), Gm=body())
        options = {"keep_input": True, "keep_input_inverse": True}
        wrapped = memcnn.InvertibleModuleWrapper(fn=coupling, **options)
        return nn.Sequential(nn.Linear(8, 8), wrapped, nn.Linear(8, 8))

    return make, squares, rows(3, 8)


def performer():
    """It draws its features again every other step."""
    from performer_pytorch import PerformerLM

    def make():
        sizes = {"num_tokens": 32, "dim": 16, "depth": 1, "max_seq_len": 32, "heads": 2}
        return PerformerLM(**sizes, dim_head=8, nb_features=8, feature_redraw_interval=2)

    return make, squares, lambda step: (torch.randint(0, 32, (2 + step % 2, 16)),)


def sparsemax():
    from sparsemax import Sparsemax

    return lambda: nn.Sequential(nn.Linear(4, 6), Sparsemax(dim=-1)), squares, rows(3, 4)


def reversed_gradients():
    from pytorch_revgrad import RevGrad

    make = lambda: nn.Sequential(nn.Linear(4, 4), RevGrad(alpha=0.5), nn.Linear(4, 2))  # noqa: E731
    return make, squares, rows(3, 4)


def random_fields():
    from torchcrf import CRF

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.field = nn.Linear(4, 3), CRF(3, batch_first=True)

        def forward(self, x, tags, mask):
            return -self.field(self.inner(x), tags, mask=mask, reduction="mean")

    def batch(step):
        count = 2 + step % 2
        mask = torch.arange(5) < torch.randint(1, 6, (count, 1))
        return torch.randn(count, 5, 4), torch.randint(0, 3, (count, 5)), mask

    return Tagger, lambda function, *given: function(*given), batch


def filterbanks():
    from asteroid_filterbanks import make_enc_dec

    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.code, self.decode = make_enc_dec("param_sinc", 16, kernel_size=17, stride=8)

        def forward(self, x):
            return self.decode(self.code(x))

    return Coded, squares, lambda step: (torch.randn(2, 1, 80 + 8 * (step % 2)),)


def averages():
    """The averaged copy is written in each call."""
    from ema_pytorch import EMA

    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            self.average = EMA(self.inner, beta=0.9, update_after_step=1, update_every=1)

        def forward(self, x):
            self.average.update()
            return self.inner(x) + self.average(x)

    return Averaged, squares, rows(3, 4)


CASES = {
    "memcnn": invertible,
    "performer-pytorch": performer,
    "sparsemax": sparsemax,
    "pytorch-revgrad": reversed_gradients,
    "pytorch-crf": random_fields,
    "asteroid-filterbanks": filterbanks,
    "ema-pytorch": averages,
}


@pytest.mark.parametrize("library", CASES)
def test_functions(library, monkeypatch):
    monkeypatch.setattr(training, "BACKEND", training.OP_BY_OP)
    make, loss, batch = CASES[library]()
    training.check(make, loss, batch, programs=3, tolerance=1e-3)
