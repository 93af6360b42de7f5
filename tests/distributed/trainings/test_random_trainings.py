"""Random trainings on two ranks: ways of wrapping, orders, optimizers, what is frozen, loaded, ...

The oracle is a plain module on each rank in float64, uncompiled, whose gradients are averaged by
hand; where an optimizer steps inside of a backward, or a hook or a policy rounds numbers, it is
what torch's wrapper makes of the uncompiled module.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import funcaot
from funcaot.distributed import shard
from tests.distributed.cases import chosen, in_parts, whole
from tests.distributed.ranks import Ranks

STEPS = 4
WAYS = (
    *("fsdp before", "fsdp after", "fsdp units before", "fsdp units after"),
    *("shard whole", "shard outside", "shard inside", "shard whole step"),
    *("ddp before", "ddp after", "ddp before", "ddp after"),
)
MIXED = MixedPrecisionPolicy(
    param_dtype=torch.float32, reduce_dtype=torch.float64, output_dtype=torch.float64
)
UNITS = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
# Of what is rounded on its way, relative and absolute.
TOLERANCES = {
    None: (1e-6, 1e-8),
    "mixed": (1e-3, 1e-4),
    "float32": (1e-5, 1e-6),
    "bf16": (0.1, 0.03),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.03, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, 0.01, eps=0.05, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, eps=0.05, fused=True),
}


class _Model(nn.Module):
    """Layers of odd sizes; what it has besides is drawn."""

    def __init__(self, drawn: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = drawn["width"]
        self.drawn, self.turn = drawn, 0
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 1)
        self.second, self.third = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width) if "norm" in drawn["has"] else nn.LayerNorm(width)
        self.drop = nn.Dropout(0.3)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(3))
        if "tied" in drawn["has"]:
            self.third.weight = self.second.weight
        if "frozen" in drawn["has"]:
            self.second.bias.requires_grad_(False)
            self.first.weight.requires_grad_(False)

    def energy(self, x):
        has = self.drawn["has"]
        if "buffer" in has:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            x = x - self.mean
        hidden = self.norm(self.first(x)).tanh()
        if "dropout" in has:
            hidden = self.drop(hidden)
        hidden = self.second(hidden).sin()
        if "unused" not in has or self.turn % 2 == 0:
            hidden = self.third(hidden).tanh()
        return (self.last(hidden) * self.scale).sum(1)

    def forward(self, x, *targets):
        return _loss(self.energy, self.drawn["order"], x, *targets) if targets else self.energy(x)


def _loss(energy, order, x, energies, forces):
    if order in ("first", "product"):
        return ((energy(x) - energies) ** 2).mean()
    x = x.detach().requires_grad_()
    found = energy(x)
    (gradient,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    if order == "forces":
        return ((found - energies) ** 2).mean() + ((gradient + forces) ** 2).mean()
    return found.mean() + ((gradient.pow(2).sum(1) + 1e-3).sqrt() - 1).pow(2).mean()


def draw(seed: int) -> dict[str, Any]:
    """The settings of a training."""
    made = random.Random(seed)
    way = made.choice(WAYS)
    orders = ["first", "forces", "penalty"] if "units" not in way else ["first"]
    if way in ("shard whole", "shard outside"):
        orders.append("product")
    traits = [
        name
        for name in ("norm", "tied", "frozen", "buffer", "dropout", "unused")
        if made.random() < 0.3
    ]
    drawn = {
        "way": way,
        "order": made.choice(orders),
        "inside": made.random() < 0.5,
        "has": traits,
        "width": made.choice((1, 5, 6)),
        "passes": made.choice((1, 1, 2, 3)),
        "sizes": made.choice(((4, 4), (4, 5), (3, 6))),
        "varying": made.random() < 0.5,
        "optimizer": made.choice(list(OPTIMIZERS)),
        "clip": made.random() < 0.5,
        "none": made.random() < 0.7,
        "loaded": made.choice((None, None, "state_dict", "checkpoint")),
        "reshard": made.random() < 0.5,
        "parts": made.random() < 0.4,
        "view": made.random() < 0.4,
        "find": made.random() < 0.2 or "unused" in traits,
        "by": made.choice((None, None, None, "hooks", "zero")),
        "static": made.random() < 0.3,
        "inductor": False,
    }
    if "fsdp" in way and drawn["order"] != "first":
        drawn["inside"] = True  # Its hooks can't carry a second derivative.
    if way == "shard inside":
        drawn["inside"] = True
    if way == "shard whole step":
        drawn["passes"], drawn["clip"] = 1, True
    if "ddp" not in way or drawn["passes"] > 1:
        drawn["by"] = None
    drawn["static"] &= drawn["by"] is None and "unused" not in traits
    drawn["static"] &= drawn["inside"] or drawn["order"] == "first"
    if drawn["by"] is not None:
        drawn.update(clip=False, loaded=None, none=True)
    _draw_communication(made, drawn)
    return drawn


def _draw_communication(made: random.Random, drawn: dict[str, Any]) -> None:
    """What happens to gradients on their way, and whether rank 1 has fewer batches."""
    # Without PowerSGD: of a matrix of a smaller rank than it expects it makes NaN, in eager too.
    rounded = made.choice((None, "float32", "bf16"))
    is_mixed, ends = made.random() < 0.4, made.random() < 0.3
    is_ddp = "ddp" in drawn["way"] and drawn["by"] is None
    # Uncompiled, a static graph that begins in no_sync is an internal error of torch's.
    is_plain = is_ddp and not (drawn["static"] and drawn["passes"] > 1)
    drawn["hook"] = rounded if is_plain else None
    drawn["mixed"] = is_mixed and "fsdp" in drawn["way"]
    drawn["join"] = ends and is_ddp and not (drawn["static"] or drawn["find"])
    if drawn["mixed"]:  # Buffers stay in float64, which eager doesn't take beside float32.
        drawn["has"] = [name for name in drawn["has"] if name not in ("norm", "buffer")]


def _batch(drawn, step: int, index: int):
    rank = dist.get_rank()
    size = drawn["sizes"][rank] + (step if drawn["varying"] else 0)
    made = torch.Generator().manual_seed(1000 * step + 10 * index + rank)
    shapes = ((size, 3), (size,), (size, 3))
    return tuple(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes)


def _directions(parameters):
    made = torch.Generator().manual_seed(7)
    found = [torch.randn(each.shape, generator=made, dtype=torch.float64) for each in parameters]
    return [
        distribute_tensor(value, each.device_mesh, each.placements)
        if hasattr(each, "device_mesh")
        else value
        for each, value in zip(parameters, found, strict=True)
    ]


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _product(loss, parameters, *given) -> torch.Tensor:
    """Add the product of the Hessian and some directions to the gradients; the loss."""
    value = loss(*given)
    firsts = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    own = sum(
        (_local(gradient) * _local(direction)).sum()
        for gradient, direction in zip(firsts, _directions(parameters), strict=True)
        if gradient is not None
    )
    own.backward(inputs=parameters)
    return value


def _rounded(dtype, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of what all ranks have in another dtype; torch's own asks for a GPU."""
    sent = bucket.buffer().to(dtype).div_(dist.get_world_size())
    work: Any = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))


def _to_float32(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return _rounded(torch.float32, state, bucket)


def _to_bf16(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return _rounded(torch.bfloat16, state, bucket)


# Torch looks at annotations, which are text in this file.
for _hook in (_to_float32, _to_bf16):
    _hook.__annotations__.update(
        bucket=dist.GradBucket, **{"return": torch.futures.Future[torch.Tensor]}
    )


HOOKS = {
    "float32": lambda: (None, _to_float32),
    "bf16": lambda: (None, _to_bf16),
}


class _Training:
    """A model, what computes its loss and gradients, and what makes its step."""

    def __init__(self, drawn: dict[str, Any], *, reference: bool) -> None:
        wraps = drawn["by"] == "hooks" or drawn["mixed"] or drawn["hook"] in ("float32", "bf16")
        self.drawn, self.reference = drawn, reference and not wraps
        self.compiles = not reference
        self.core = self.model = _Model(drawn).double()
        self.loss, self.ended = None, False
        if not self.reference:
            self._wrap()
        self._optimize()

    def _compiled(self, function):
        if not self.compiles or self.drawn.get("plain"):
            return function
        backend = "inductor" if self.drawn["inductor"] else chosen.backend
        return funcaot.compile(function, backend=backend)

    def _wrap(self) -> None:
        kind, _, how = self.drawn["way"].partition(" ")
        compiled, core = self._compiled, self.core
        if kind == "ddp":
            given = {
                "find_unused_parameters": self.drawn["find"],
                "gradient_as_bucket_view": self.drawn["view"],
                "broadcast_buffers": False,
                "static_graph": self.drawn["static"],
            }
            wrapped = functools.partial(DistributedDataParallel, **given)
            self.model = wrapped(compiled(core)) if how == "before" else compiled(wrapped(core))
            if self.drawn["hook"] is not None:
                self.model.register_comm_hook(*HOOKS[self.drawn["hook"]]())
        elif kind == "fsdp":
            self._fully_shard(how)
        else:
            shard(core)
            if how in ("inside", "outside"):
                self.model = compiled(core)
            elif how == "whole":
                self.loss = compiled(lambda *given: self._plain_loss(core, *given))

    def _fully_shard(self, how: str) -> None:
        given: dict[str, Any] = {"reshard_after_forward": self.drawn["reshard"]}
        if self.drawn["mixed"]:
            given["mp_policy"] = UNITS if "units" in how else MIXED
        core, compiled = self.core, self._compiled
        if "units" in how:
            for name in ("first", "second", "third"):
                if "tied" in self.drawn["has"] and name != "first":
                    continue  # Two units can't share a parameter.
                layer = getattr(core, name)
                layer = compiled(layer) if "before" in how else layer
                setattr(core, name, fully_shard(layer, **given))
            self.model = fully_shard(core, **given)
            if "after" in how:
                self.model = compiled(self.model)
        elif how == "before":
            self.model = fully_shard(compiled(core), **given)
        else:
            self.model = compiled(fully_shard(core, **given))

    def _plain_loss(self, model, *given):
        if self.drawn["inside"]:
            return model(*given)
        return _loss(model, self.drawn["order"], *given)

    def _optimize(self) -> None:
        make, by = OPTIMIZERS[self.drawn["optimizer"]], self.drawn["by"]
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.parameters = parameters
        self.step = self._whole_step if self.drawn["way"] == "shard whole step" else self._step
        if self.reference or by is None:
            self.optimizer = make(parameters)
            if self.step == self._whole_step and not self.reference:
                self.program = self._compiled(self._whole)
            return
        if by == "zero":
            # Importing it warns of torch.jit, which is an error in the process of the test.
            from torch.distributed.optim import ZeroRedundancyOptimizer

            kind, keywords = _named(make)
            self.optimizer = ZeroRedundancyOptimizer(parameters, kind, **keywords)
            return
        self.optimizer = make([torch.zeros(1, requires_grad=True)])  # steps are made in backwards
        every = {each: make([each]) for each in parameters}
        for each in parameters:
            each.register_post_accumulate_grad_hook(lambda p: _step_of(every[p], p))

    def _one_pass(self, index: int, given) -> torch.Tensor:
        if self.ended:
            for each in self.parameters:
                each.grad = torch.zeros_like(each)
            return torch.zeros(())
        last = index == self.drawn["passes"] - 1
        syncs: Any = contextlib.nullcontext()
        if not self.reference and not last and "ddp" in self.drawn["way"]:
            syncs = self.model.no_sync()
        if not self.reference and "fsdp" in self.drawn["way"]:
            self.model.set_requires_gradient_sync(last)
        loss = self.loss or (lambda *each: self._plain_loss(self.model, *each))
        with syncs:
            if self.drawn["order"] == "product":
                return _product(loss, self.parameters, *given).detach()
            value = loss(*given)
            value.backward()
        return value.detach()

    def _average(self) -> None:
        for each in self.parameters:
            if each.grad is not None:
                dist.all_reduce(each.grad)
                each.grad /= dist.get_world_size()

    def _whole(self, given) -> torch.Tensor:
        value = self._plain_loss(self.core, *given)
        value.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()
        return value.detach()

    def _whole_step(self, step: int) -> list[Any]:
        torch.manual_seed(100 * step + dist.get_rank())
        given = _batch(self.drawn, step, 0)
        if self.reference:
            found = self._one_pass(0, given)
            self._average()
            nn.utils.clip_grad_norm_(self.parameters, 0.5)
            self.optimizer.step()
        else:
            found = self.program(given)
        self.optimizer.zero_grad(set_to_none=self.drawn["none"])
        return [found]

    def _step(self, step: int) -> list[Any]:
        found: list[Any] = []
        for index in range(self.drawn["passes"]):
            torch.manual_seed(100 * step + 10 * index + dist.get_rank())
            found.append(self._one_pass(index, _batch(self.drawn, step, index)))
        if self.reference:
            self._average()
        if self.drawn["by"] != "hooks":
            found += [None if p.grad is None else whole(p.grad).clone() for p in self.parameters]
        if self.drawn["clip"]:
            found.append(whole(nn.utils.clip_grad_norm_(self.parameters, 0.5)).clone())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.drawn["none"])
        return found

    def load(self) -> None:
        """Take the present state away and bring it back."""
        if self.drawn["loaded"] == "state_dict":
            state = copy.deepcopy(self.model.state_dict())
            moments = copy.deepcopy(self.optimizer.state_dict())
        else:
            state, moments = map(copy.deepcopy, get_state_dict(self.model, self.optimizer))
        with torch.no_grad():
            for each in self.model.parameters():
                each.mul_(3)
        if self.drawn["loaded"] == "state_dict":
            self.model.load_state_dict(state)
            self.optimizer.load_state_dict(moments)
        else:
            set_state_dict(
                self.model, self.optimizer, model_state_dict=state, optim_state_dict=moments
            )

    def run(self) -> list[list[Any]]:
        """Losses, gradients, norms, parameters and buffers, step by step."""
        found = []
        joined = self.drawn["join"] and not self.reference
        with self.model.join() if joined else contextlib.nullcontext():
            self._run(found)
        return found

    def _run(self, found: list[list[Any]]) -> None:
        for step in range(STEPS):
            self.core.turn = step
            if self.drawn["join"] and step >= STEPS // 2 and dist.get_rank() == 1:
                if not self.reference:
                    return
                self.ended = True
            made = self.step(step)
            made += [whole(each.detach()).clone() for each in self.model.parameters()]
            made += [each.clone() for each in self.core.buffers()]
            found.append(made)
            if step == 1 and self.drawn["loaded"] and not self.reference:
                self.load()


_KEYWORDS = ("lr", "momentum", "eps", "weight_decay", "foreach", "fused")


def _named(make) -> tuple[Any, dict[str, Any]]:
    """The class of an optimizer and what it is given."""
    made = make([torch.zeros(1, requires_grad=True)])
    return type(made), {name: made.defaults[name] for name in _KEYWORDS if name in made.defaults}


def _step_of(optimizer, parameter) -> None:
    optimizer.step()
    parameter.grad = None


def check(seed: int, changes: dict[str, Any] | None = None) -> str:
    """What differs from the reference on any rank; nothing if it is the same."""
    drawn = {**draw(seed), **(changes or {})}
    expected = _Training(drawn, reference=True).run()
    run = lambda: _Training(drawn, reference=False).run()  # noqa: E731
    said = ""
    try:
        found = in_parts(run) if drawn["parts"] else run()
        rtol, atol = TOLERANCES["mixed" if drawn["mixed"] else drawn["hook"]]
        expected = expected[: len(found)]
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        said = f"{drawn}: {error}"
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, said)
    return "\n".join(f"{seed} on rank {rank}, {each}" for rank, each in enumerate(every) if each)


def _checked(seeds, changes=None) -> None:
    said = list(filter(None, (check(seed, changes) for seed in seeds)))
    assert not said, "\n".join(said)


# A whole step of what is sharded, with tied parameters, and a penalty inside of fully_shard.
@pytest.mark.parametrize("seed", [9, pytest.param(31, marks=pytest.mark.long)])
def test_some(ranks: Ranks, seed):
    ranks.run(_checked, (seed,), deadline=200)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_more(ranks: Ranks, part):
    ranks.run(_checked, tuple(range(20 * part, 20 * part + 20)), deadline=1200)
