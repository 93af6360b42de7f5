"""Random programs of pieces, and everything that is asked of one."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass

import torch

from tests.derivatives.compositions.piece import Piece
from tests.derivatives.compositions.pieces import MAKERS


@dataclass(frozen=True)
class Program:
    pieces: tuple[Piece, ...]

    def __str__(self):
        return " ".join(piece.name for piece in self.pieces)

    @property
    def draws(self):
        return any(piece.draws for piece in self.pieces)

    @property
    def batches(self):
        return all(piece.batches for piece in self.pieces)

    def __call__(self, h, p):
        return self._run(h, p, "fused")

    def written(self, h, p):
        return self._run(h, p, "plain")

    def _run(self, h, p, which):
        for piece in self.pieces:
            h = mixed(h, getattr(piece, which)(h, p))
        return h.reshape(-1)


def mixed(h, found):
    """What came before and all of what a piece gave, in the shape of the first."""
    flat = found.reshape(-1).to(h.dtype)
    places = torch.arange(1, flat.numel() + 1, dtype=h.dtype)
    rows = torch.arange(1, 13, dtype=h.dtype).unsqueeze(1)
    sums = (flat * (places * rows * 0.7).sin()).mean(-1)
    return h * 0.6 + sums.tanh().reshape(3, 4)


def program(seed, most=4):
    rng = random.Random(seed)
    return Program(tuple(rng.choice(MAKERS)(rng) for _ in range(rng.randint(1, most))))


def operands(seed, size=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(size, 3, 4, generator=generator, dtype=torch.float64).to(dtype)
        for _ in range(2)
    )


def weights(tensor, seed):
    places = torch.arange(1, tensor.numel() + 1, dtype=tensor.dtype)
    return (places * (0.9 + seed)).sin().reshape(tensor.shape)


def loss_of(function):
    def loss(*values):
        found = function(*values)
        return (weights(found, 0.3) * (found * 1.3).sin()).sum()

    return loss


def _leaves(values):
    return [v.detach().clone().requires_grad_() for v in values]


def repeated(order):
    def way(function, values):
        inputs = _leaves(values)
        value = loss_of(function)(*inputs)
        for step in range(order):
            grads = torch.autograd.grad(
                value, inputs, create_graph=step < order - 1, materialize_grads=True
            )
            value = sum((weights(g, step + i) * g).sum() for i, g in enumerate(grads))
        return grads

    return way


def _tangents(values, seed=0):
    return tuple(weights(v, seed + i) for i, v in enumerate(values))


def jvp(function, values):
    return torch.func.jvp(function, tuple(values), _tangents(values))


def grad(function):
    return torch.func.grad(loss_of(function), argnums=(0, 1))


def forward_over_reverse(function, values):
    return torch.func.jvp(grad(function), tuple(values), _tangents(values))


def reverse_over_forward(function, values):
    def pushed(*v):
        return torch.func.jvp(loss_of(function), v, _tangents(v))[1]

    return torch.func.grad(pushed, argnums=(0, 1))(*values)


def reverse_over_reverse(function, values):
    found, pull = torch.func.vjp(grad(function), *values)
    return found, pull(_tangents(found))


def forward_over_forward(function, values):
    def pushed(*v):
        return torch.func.jvp(function, v, _tangents(v))[1]

    return torch.func.jvp(pushed, tuple(values), _tangents(values, 2))


def third(function, values):
    def product(*v):
        return torch.func.jvp(grad(function), v, _tangents(v))[1]

    _, pull = torch.func.vjp(product, *values)
    return pull(_tangents(values, 3))


def jacrev(function, values):
    return torch.func.jacrev(function, argnums=(0, 1))(*values)


def jacfwd(function, values):
    return torch.func.jacfwd(function, argnums=(0, 1))(*values)


def hessian(function, values):
    return torch.func.hessian(loss_of(function), argnums=(0, 1))(*values)


def hessian_of_reverses(function, values):
    return torch.func.jacrev(torch.func.grad(loss_of(function)), argnums=1)(*values)


def vmap_of_grad(function, values):
    batch = [torch.stack([v, v.flip(-1)]) for v in values]
    return torch.func.vmap(grad(function))(*batch)


def vmap_of_one(function, values):
    batch = torch.stack([values[0], values[0].flip(-1)], 1)
    return torch.func.vmap(grad(function), in_dims=(1, None))(batch, values[1])


def grad_of_vmap(function, values):
    batch = [torch.stack([v, v.flip(-1)]) for v in values]

    def total(*v):
        return torch.func.vmap(loss_of(function))(*v).sin().sum()

    return torch.func.grad(total, argnums=(0, 1))(*batch)


def vmap_of_hvp(function, values):
    batch = [torch.stack([v, v.flip(-1)]) for v in values]

    def product(*v):
        return torch.func.jvp(grad(function), v, _tangents(v))[1]

    return torch.func.vmap(product)(*batch)


def batched(function, values):
    inputs = _leaves(values)
    found = function(*inputs)
    arriving = torch.stack([weights(found, k) for k in range(3)])
    return torch.autograd.grad(
        found, inputs, arriving, is_grads_batched=True, materialize_grads=True
    )


def functional_hvp(function, values):
    return torch.autograd.functional.hvp(loss_of(function), tuple(values), _tangents(values))


def functional_jacobian(function, values):
    return torch.autograd.functional.jacobian(function, tuple(values), vectorize=True)


def functional_hessian(function, values):
    return torch.autograd.functional.hessian(
        loss_of(function), tuple(values), vectorize=True, outer_jacobian_strategy="forward-mode"
    )


WAYS = {
    "first": repeated(1),
    "double": repeated(2),
    "triple": repeated(3),
    "jvp": jvp,
    "forward_over_reverse": forward_over_reverse,
    "reverse_over_forward": reverse_over_forward,
    "reverse_over_reverse": reverse_over_reverse,
    "forward_over_forward": forward_over_forward,
    "third": third,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": hessian,
    "hessian_of_reverses": hessian_of_reverses,
    "vmap_of_grad": vmap_of_grad,
    "vmap_of_one": vmap_of_one,
    "grad_of_vmap": grad_of_vmap,
    "vmap_of_hvp": vmap_of_hvp,
    "batched": batched,
    "functional_hvp": functional_hvp,
    "functional_jacobian": functional_jacobian,
    "functional_hessian": functional_hessian,
}
# All examples come at once in these, and draw the same or other numbers than one by one.
BATCHING = {
    name for name in WAYS
    if "vmap" in name or name in ("jacrev", "jacfwd", "batched") or "hessian" in name
    or name == "functional_jacobian"
}  # fmt: skip
OVER_EXAMPLES = {"vmap_of_grad", "vmap_of_one", "grad_of_vmap", "vmap_of_hvp"}


def applies(way, made):
    if made.draws and way in BATCHING:
        return False
    return made.batches or way not in OVER_EXAMPLES


def expected(way, made, values):
    """What eager gives for the program written out."""
    # Of autograd's own two, one in forward mode can't batch what is written into a constant.
    return asked("hessian" if way == "functional_hessian" else way, made.written, values)


def asked(way, function, values, seed=5):
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WAYS[way](function, values)


def flat(found):
    if isinstance(found, torch.Tensor):
        return [found.detach()]
    return [t for part in found for t in flat(part)]


def difference(found, wanted):
    """The largest, relative to the largest number of all."""
    found, wanted = flat(found), flat(wanted)
    assert len(found) == len(wanted)
    assert [f.shape for f in found] == [w.shape for w in wanted]
    scale = 1 + max(float(w.abs().max()) for w in wanted)
    return (
        max(
            float((f.double() - w.double()).abs().nan_to_num(1e9).max())
            for f, w in zip(found, wanted, strict=True)
        )
        / scale
    )
