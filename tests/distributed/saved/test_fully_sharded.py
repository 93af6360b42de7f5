"""Rank 0 compiles modules under fully_shard, alone, and all ranks run its programs."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import funcaot
from funcaot.aot.runtime.module import functions_of
from tests.distributed.saved import layouts


class Forces(layouts.Energy):
    """Takes a derivative inside, so that its loss is of second order."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).sin().sum()
            (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
        return gradient.square()


class Normed(layouts.Energy):
    """Writes to buffers, in a unit and between units, and draws in between."""

    def __init__(self):
        super().__init__()
        self.inner, self.between = nn.BatchNorm1d(4), nn.BatchNorm1d(3)
        self.first = nn.Sequential(self.first, self.inner)

    def forward(self, x):
        return super().forward(torch.dropout(self.between(x), 0.5, self.training))


def _each(module, compiled, options):
    """Both layers are units; what is around them is another one."""
    for name in ("first", "last"):
        setattr(module, name, fully_shard(compiled(getattr(module, name), name), **options))
    return fully_shard(module, **options)


def _plainly(module, name):
    return module


# A unit of its own, or units in units; wrapped before or after they are compiled.
WAYS = {
    "after": lambda module, compiled, options: compiled(fully_shard(module, **options)),
    "before": lambda module, compiled, options: fully_shard(compiled(module), **options),
    "units after": lambda module, compiled, options: compiled(_each(module, _plainly, options)),
    "units before": _each,
}


class _Maker:
    """Wraps and compiles; with a path, programs are looked for there."""

    def __init__(self, way, backend, path, options):
        self.way, self.backend, self.path, self.options = way, backend, path, options

    def __call__(self, module, *, finding):
        self.compiled = {}

        def compiled(part, name="whole"):
            artifacts = f"{self.path}/{name}" if finding else None
            made = funcaot.compile(part, backend=self.backend, artifacts=artifacts)
            self.compiled[name] = made
            return made

        return WAYS[self.way](module, compiled, self.options)

    @property
    def functions(self):
        return [each for made in self.compiled.values() for each in functions_of(made)]

    def save(self):
        for name, made in self.compiled.items():
            saved = made.save(f"{self.path}/{name}")
            assert saved.programs == len(functions_of(made)), saved
            assert not saved.left_out, saved

    def check_that_all_was_found(self):
        for function in self.functions:
            report = funcaot.report(function)
            counts = report.cache_misses, report.backward_traces, report.graphs_compiled
            assert counts == (0, 0, 0), [entry.reason for entry in function.entries]
            assert function.entries


def _own(step):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, 3, generator=generator)


def _shared(step):
    """What all ranks compute alike; only the first one's is known to one process."""
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(step))


def _units_for_all(way, order, backend, path, options):
    make, plain = _Maker(way, backend, path, options), Forces() if order == 2 else layouts.Energy()
    module = make(type(plain)(), finding=False)
    if dist.get_rank() == 0:
        # Nobody else does this: it waits for no rank.
        x = torch.ones(4, 3, requires_grad=order == 1)
        with torch.set_grad_enabled(order > 0):
            for each in [module] if hasattr(module, "warm_up") else make.compiled.values():
                each.warm_up(x if each is module else torch.ones(4, each.in_features))
        make.save()
    dist.barrier()
    module = make(type(plain)(), finding=True)
    for step in range(3):
        with torch.set_grad_enabled(order > 0):
            found = layouts.derivatives(module, _own(step), min(order, 1))
            expected = layouts.derivatives(plain, _own(step), min(order, 1))
        for gradient in expected[-4:] if order else ():
            if gradient is not None:
                dist.all_reduce(gradient)
                gradient /= 2
        torch.testing.assert_close(layouts.whole(found), layouts.whole(expected))
        module.zero_grad()
        plain.zero_grad()
    make.check_that_all_was_found()


@pytest.mark.parametrize(
    ("way", "order", "backend"),
    [
        *[(way, order, "eager") for way in ("after", "before") for order in (0, 1, 2)],
        *[("units after", order, "eager") for order in (0, 1)],
        *[(way, 2, "inductor") for way in ("after", "before")],
        ("units after", 1, "inductor"),
    ],
)
def test_units(ranks, way, order, backend, tmp_path):
    ranks.run(_units_for_all, way, order, backend, str(tmp_path), {}, deadline=60)
