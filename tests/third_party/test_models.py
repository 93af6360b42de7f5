"""Models of other libraries, unmodified, with random weights: trained compiled as in eager mode."""

import numpy as np
import pytest
import torch
from torch import nn
from training import check

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def language_model(model, config, **options):
    import transformers

    settings = getattr(transformers, config)(vocab_size=50, **options)
    check(
        lambda: getattr(transformers, model)(settings),
        lambda function, ids: function(input_ids=ids, labels=ids).loss,
        lambda step: (torch.randint(0, 50, (2, 7)),),
    )


TRANSFORMERS = {
    "bert": ("BertForMaskedLM", "BertConfig", SMALL),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SMALL, "num_key_value_heads": 2}),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0},
    ),
    "deberta": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        {**SMALL, "relative_attention": True, "max_relative_positions": 16}
        | {"pos_att_type": ["c2p", "p2c"]},
    ),
}
DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "t5": ("dropout_rate",),
    "deberta": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name):
    model, config, options = TRANSFORMERS[name]
    language_model(model, config, **options, **dict.fromkeys(DROPOUTS.get(name, ()), 0.0))


def test_vision_transformer():
    import transformers

    config = transformers.ViTConfig(image_size=16, patch_size=4, hidden_dropout_prob=0, **SMALL)
    check(
        lambda: transformers.ViTForImageClassification(config),
        lambda function, x: function(pixel_values=x).logits.pow(2).sum(),
        lambda step: (torch.randn(2, 3, 16, 16),),
    )


def test_e3nn():
    from e3nn import o3

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct(
                "4x0e+4x1o", "1x0e+1x1o+1x2e", "4x0e+4x1o"
            )
            self.linear = o3.Linear("4x0e+4x1o", "4x0e+2x1o")

        def forward(self, x, v):
            harmonics = o3.spherical_harmonics(
                "0e+1o+2e", v, normalize=True, normalization="component"
            )
            return self.linear(self.product(x, harmonics))

    def loss(function, x, v):
        v = v.requires_grad_()
        value = function(x, v).pow(2).sum()
        (force,) = torch.autograd.grad(value, v, create_graph=True)
        return value + force.pow(2).sum()

    check(
        Model,
        loss,
        lambda step: (torch.randn(5 + step, 16), torch.randn(5 + step, 3)),
        tolerance=1e-3,
    )


def atoms(step):
    count = 6 + step % 3
    positions = torch.rand(count, 3) * 4
    near = (positions[:, None] - positions[None]).norm(dim=-1) < 3
    edges = (near & ~torch.eye(count, dtype=torch.bool)).nonzero().t().contiguous()
    pairs = edges.shape[1]
    return {
        "positions": positions,
        "node_attrs": nn.functional.one_hot(torch.arange(count) % 2, 2).float(),
        "edge_index": edges,
        "shifts": torch.zeros(pairs, 3),
        "unit_shifts": torch.zeros(pairs, 3),
        "cell": torch.eye(3) * 10,
        "batch": torch.zeros(count, dtype=torch.long),
        "ptr": torch.tensor([0, count]),
        "head": torch.zeros(1, dtype=torch.long),
    }


def test_mace():
    from e3nn import o3
    from mace import modules

    block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]

    def make():
        return modules.ScaleShiftMACE(
            r_max=3.0,
            num_bessel=4,
            num_polynomial_cutoff=5,
            max_ell=2,
            interaction_cls=block,
            interaction_cls_first=block,
            num_interactions=2,
            num_elements=2,
            hidden_irreps=o3.Irreps("8x0e+8x1o"),
            MLP_irreps=o3.Irreps("8x0e"),
            gate=nn.functional.silu,
            atomic_energies=np.array([0.1, 0.2]),
            avg_num_neighbors=5.0,
            atomic_numbers=[1, 8],
            correlation=2,
            atomic_inter_scale=1.0,
            atomic_inter_shift=0.0,
        )

    def loss(function, data):
        found = function(data, training=True)
        return found["energy"].pow(2).sum() * 1e-3 + found["forces"].pow(2).sum()

    check(make, loss, lambda step: (atoms(step),), tolerance=1e-3)


@pytest.mark.parametrize("kind", ["IFNode", "LIFNode", "ParametricLIFNode"])
def test_spikingjelly(kind):
    from spikingjelly.activation_based import functional, neuron, surrogate

    def make():
        def spiking():
            return getattr(neuron, kind)(surrogate_function=surrogate.ATan())

        return nn.Sequential(nn.Linear(8, 16), spiking(), nn.Linear(16, 4), spiking())

    def loss(function, x, y):
        functional.reset_net(function)
        return nn.functional.mse_loss(sum(function(x) for _ in range(4)) / 4, y)

    check(make, loss, lambda step: (torch.rand(5, 8) * 2, torch.rand(5, 4)))


def test_snntorch():
    import snntorch

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
            self.spikes, self.out = snntorch.Leaky(beta=0.9), snntorch.Leaky(beta=0.9)

        def forward(self, x):
            inner, outer = self.spikes.init_leaky(), self.out.init_leaky()
            found = []
            for _ in range(4):
                spikes, inner = self.spikes(self.first(x), inner)
                _, outer = self.out(self.second(spikes), outer)
                found.append(outer)
            return torch.stack(found)

    def loss(function, x, y):
        return nn.functional.cross_entropy(function(x).sum(0), y)

    check(Net, loss, lambda step: (torch.rand(5, 8), torch.randint(0, 4, (5,))), steps=8)


def test_norse():
    import norse.torch as norse

    def make():
        return norse.SequentialState(
            nn.Linear(8, 16), norse.LIFCell(), nn.Linear(16, 4), norse.LICell()
        )

    def loss(function, x, y):
        state = None
        for _ in range(4):
            found, state = function(x, state)
        return (found - y).pow(2).mean()

    check(make, loss, lambda step: (torch.rand(5, 8) * 3, torch.rand(5, 4)))


def test_gpytorch():
    import gpytorch

    inputs = torch.linspace(0, 1, 24).reshape(12, 2)
    targets = inputs.sin().sum(-1)

    class Process(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    class Likelihood(nn.Module):
        def __init__(self):
            super().__init__()
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.process = Process(self.likelihood)
            self.mll = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.process)

        def forward(self, x):
            return -self.mll(self.process(x), targets)

    check(Likelihood, lambda function, x: function(x), lambda step: (inputs,))


@pytest.mark.parametrize("name", ["odeint", "odeint_adjoint"])
def test_torchdiffeq(name):
    import torchdiffeq

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, t, y):
            return self.inner(y)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.field = Field()

        def forward(self, y):
            times = torch.linspace(0, 1, 3)
            return getattr(torchdiffeq, name)(self.field, y, times, method="rk4")

    check(Model, lambda function, y: function(y).pow(2).sum(), lambda step: (torch.randn(4, 2),))


@pytest.mark.parametrize("kind", ["NSF", "MAF", "NAF", "UNAF"])
def test_zuko(kind):
    import zuko

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = getattr(zuko.flows, kind)(2, context=1, transforms=1, hidden_features=[8])

        def forward(self, x, c):
            return -self.flow(c).log_prob(x).mean()

    def batch(step):
        return torch.rand(5, 2) * 0.5, torch.rand(5, 1)

    check(Model, lambda function, x, c: function(x, c), batch)


def test_zuko_backwards():
    """Roots are found by bisection, and differentiated by a Function that is given a callable."""
    import zuko

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = zuko.flows.NAF(2, context=1, transforms=1, hidden_features=[8])

        def forward(self, x, c):
            return self.flow(c).transform.inv(x).pow(2).sum()

    def batch(step):
        return torch.rand(5, 2) * 0.5, torch.rand(5, 1)

    check(Model, lambda function, x, c: function(x, c), batch)


def test_entmax():
    import entmax

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            y = self.inner(x)
            found = entmax.entmax15(y), entmax.sparsemax(y), entmax.entmax_bisect(y, 1.3)
            return sum(each.pow(2).sum() for each in found)

    check(Model, lambda function, x: function(x), lambda step: (torch.randn(5, 6),))


def test_graph_convolutions():
    """The counts of edges change, and the library's messages are passed by name."""
    from torch_geometric.nn import GCNConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(8, 16), GCNConv(16, 4)

        def forward(self, x, edges):
            return self.second(self.first(x, edges).relu(), edges)

    def batch(step):
        nodes = 10 + step % 2
        return torch.randn(nodes, 8), torch.randint(0, nodes, (2, 20 + step % 3))

    check(Net, lambda function, x, edges: function(x, edges).pow(2).mean(), batch, programs=8)
