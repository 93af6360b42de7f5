"""Plans of ``parallelize_module`` for a language model: what goes in and comes out is moved.

Embeddings, sequences between layers, heads, a loss over a cut vocabulary. The oracle is the module
in one process.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import funcaot
from tests.distributed.cases import chosen, whole
from tests.distributed.ranks import Ranks

WIDTH, WORDS = 8, 12


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        rows, length, _ = x.shape
        heads = [
            each(x).view(rows, length, -1, 4).transpose(1, 2) for each in (self.q, self.k, self.v)
        ]
        found = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(rows, length, -1))


class _Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.attention = nn.LayerNorm(WIDTH), _Attention()
        self.after, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        x = x + self.down(nn.functional.silu(self.up(self.after(x))))
        return self.head(self.last(x))


class _Normed(nn.Module):
    """A norm alone, whose second derivative is traced in seconds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + nn.functional.silu(self.norm(x))


class _Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.words = _Layers(), nn.Embedding(WORDS, WIDTH)

    def forward(self, words):
        return self.layers(self.words(words))


def _sequences(head: ColwiseParallel) -> dict[str, object]:
    """Between the layers, each rank has a part of the sequence."""
    moved = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    return {
        "before": SequenceParallel(),
        "attention": PrepareModuleInput(**moved),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "after": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "last": SequenceParallel(),
        "head": head,
    }


def _cut_inputs() -> PrepareModuleInput:
    """A plan of a whole module: its layers see the part of a sequence."""
    return PrepareModuleInput(
        input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
    )


def _moved_both_ways() -> dict[str, object]:
    """The sequences of `_sequences`, with attention that is moved into and out of."""
    attention = PrepareModuleInputOutput(
        input_layouts=(Shard(1),),
        desired_input_layouts=(Replicate(),),
        output_layouts=(Replicate(),),
        desired_output_layouts=(Shard(1),),
    )
    plan = {**_sequences(_whole_results()), "": _cut_inputs()}
    return {**plan, "attention": attention, "attention.out": RowwiseParallel()}


def _whole_results() -> ColwiseParallel:
    return ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())


def _in_layers(plan: dict[str, object]) -> dict[str, object]:
    words = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    return {"words": words, **{f"layers.{name}": each for name, each in plan.items()}}


def _cut_words() -> ColwiseParallel:
    return ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)


def _text(step):
    made = torch.Generator().manual_seed(step)
    return torch.randint(WORDS, (2, 4 + 2 * (step // 2)), generator=made)


def _positions(step):
    made = torch.Generator().manual_seed(step)
    return torch.randn(2, 4 + 2 * (step // 2), WIDTH, generator=made)


def _cross_entropy(model, words):
    found = model(words)
    return nn.functional.cross_entropy(found.flatten(0, 1), words.roll(-1, 1).flatten())


def _penalty(model, x):
    x = x.detach().requires_grad_()
    value = model(x).sin().sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return value + gradient.square().sum()


# The module, its plan, the loss, its data, and what is compiled.
CASES = {
    "sequence": (
        _Language,
        _in_layers(_sequences(_whole_results())),
        _cross_entropy,
        _text,
        "before",
    ),
    "loss": (_Language, _in_layers(_sequences(_cut_words())), _cross_entropy, _text, "whole"),
    "output": (
        _Layers,
        {
            "after": PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=Shard(1)
            ),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(),
        },
        _penalty,
        _positions,
        "whole",
    ),
    "norm, penalty": (
        _Normed,
        {
            "": PrepareModuleInputOutput(
                input_layouts=(Replicate(),),
                desired_input_layouts=(Shard(1),),
                use_local_input=True,
                output_layouts=(Shard(1),),
                desired_output_layouts=(Replicate(),),
            ),
            "norm": SequenceParallel(use_local_output=True),
        },
        _penalty,
        _positions,
        "before",
    ),
    "sequence, attention, penalty": (
        _Layers,
        {**_sequences(_whole_results()), "": _cut_inputs()},
        _penalty,
        _positions,
        "whole",
    ),
    "into and out of attention": (_Layers, _moved_both_ways(), _penalty, _positions, "before"),
}
# The others take half a minute each, most of it in torch's own choice of placements.
_SHORT = ("norm, penalty",)


def _train(model, loss, data, *, cut=False):
    optimizer, found = torch.optim.SGD(model.parameters(), 0.02, foreach=False), []
    for step in range(3):
        with loss_parallel() if cut else contextlib.nullcontext():
            value = loss(model, data(step))
            value.backward()
        found.append([whole(value).detach(), *(whole(each.grad) for each in model.parameters())])
        optimizer.step()
        optimizer.zero_grad()
    return found


def _as_in_one_process(name: str) -> None:
    make, plan, loss, data, compiled = CASES[name]
    torch.set_default_dtype(torch.float64)
    try:
        with funcaot.install():  # Attention has no second derivative without it.
            expected = _train(make(), loss, data)
        model = make()
        if compiled == "before":
            model = funcaot.compile(model, backend=chosen.backend)
        model = parallelize_module(model, dist.init_device_mesh("cpu", (2,)), plan)
        if compiled == "whole":
            loss = funcaot.compile(loss, backend=chosen.backend)
        found = _train(model, loss, data, cut=name == "loss")
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in _SHORT)) for name in CASES]
)
def test_as_in_one_process(ranks: Ranks, name):
    ranks.run(_as_in_one_process, name, deadline=200)
