"""Rank 0 compiles modules under fully_shard, alone, and all ranks run its programs."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

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
        self.first, self.between = nn.Sequential(self.first, nn.BatchNorm1d(4)), nn.BatchNorm1d(3)

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

    def save(self):
        for name, made in self.compiled.items():
            saved = made.save(f"{self.path}/{name}")
            assert saved.programs == len(functions_of(made)), saved
            assert not saved.left_out, saved

    def check_that_all_was_found(self):
        for made in self.compiled.values():
            report = funcaot.report(made)
            counts = report.cache_misses, report.backward_traces, report.graphs_compiled
            reasons = [entry.reason for each in functions_of(made) for entry in each.entries]
            assert counts == (0, 0, 0), reasons
            assert len(report.entries) == len(functions_of(made))


def _own(step):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, 3, generator=generator)


OPTIONS = {
    "": {},
    "resharded": {"reshard_after_forward": True},
    "not resharded": {"reshard_after_forward": False},
    "mixed": {
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
    },
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}


def _units_for_all(way, order, backend, path, option):
    options = OPTIONS[option]
    make, plain = _Maker(way, backend, path, options), Forces() if order == 2 else layouts.Energy()
    module = make(type(plain)(), finding=False)
    if dist.get_rank() == 0:
        # Nobody else does this: it waits for no rank.
        x = torch.ones(4, 3, requires_grad=order > 0)
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
        rtol, atol = (3e-2, 1e-1) if option == "mixed" else (1e-5, 1e-6)
        pair = layouts.whole(found), layouts.whole(expected)
        torch.testing.assert_close(*pair, rtol=rtol, atol=atol)
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
    ranks.run(_units_for_all, way, order, backend, str(tmp_path), "", deadline=60)


@pytest.mark.parametrize("option", list(OPTIONS)[1:])
def test_options(ranks, option, tmp_path):
    ranks.run(_units_for_all, "units after", 1, "eager", str(tmp_path), option, deadline=60)


def _after_a_step_of_all(path):
    """Units that were compiled one by one have files of their own, made by a step of all ranks."""
    make = _Maker("units before", "eager", path, {})
    first = make(layouts.Energy(), finding=False)
    layouts.derivatives(first, _own(0), 1)
    if dist.get_rank() == 0:
        make.save()
    dist.barrier()
    module, plain = make(layouts.Energy(), finding=True), layouts.Energy()
    for step in range(2):
        found, expected = (layouts.derivatives(f, _own(step), 1) for f in (module, plain))
        for gradient in expected[-4:]:
            dist.all_reduce(gradient)
            gradient /= 2
        torch.testing.assert_close(layouts.whole(found), layouts.whole(expected))
        module.zero_grad()
        plain.zero_grad()
    make.check_that_all_was_found()


def test_units_with_files_of_their_own(ranks, tmp_path):
    ranks.run(_after_a_step_of_all, str(tmp_path), deadline=60)


def _trained(warm):
    """Three steps, with a warm-up before them and between them, and what can be seen of it."""
    torch.manual_seed(1)
    model = funcaot.compile(_each(Normed(), _plainly, {}), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for step in range(3):
        if warm and dist.get_rank() == 0 and step != 1:
            model.warm_up(torch.ones(4, 3))
        if step == 2:  # What is loaded before the first call is taken, a warm-up between or not.
            seen.append(layouts.whole(model.state_dict().values()))
        model(_own(step)).square().sum().backward()
        optimizer.step()
        seen.append(layouts.whole(parameter.grad for parameter in model.parameters()))
        optimizer.zero_grad()
        seen.append([layouts.whole(model.buffers()), torch.rand(2)])
    return seen, list(model.parameters())


def _leaves_nothing_behind():
    found, parameters = _trained(True)
    expected, _ = _trained(False)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert all(type(parameter).__name__ == "DTensor" for parameter in parameters)


def test_warming_up_leaves_nothing_behind(ranks):
    ranks.run(_leaves_nothing_behind, deadline=60)


def _inner_first():
    """A unit that is warmed up by itself isn't the root: the whole is, in its first call."""
    units = []

    def compiled(part, name):
        units.append(funcaot.compile(part, backend="eager"))
        return units[-1]

    module, plain = _each(layouts.Energy(), compiled, {}), layouts.Energy()
    if dist.get_rank() == 0:
        for unit in units:
            unit.warm_up(torch.ones(4, unit.in_features))
    found, expected = (f(_own(0).requires_grad_()) for f in (module, plain))
    torch.testing.assert_close(found, expected)
    found.sum().backward()


def test_a_unit_is_warmed_up_by_itself(ranks):
    ranks.run(_inner_first, deadline=60)


def _refused():
    model = funcaot.compile(fully_shard(layouts.Energy()), backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError, match=r"funcaot\.distributed\.shard"):
        model.warm_up(torch.ones(4, 3), orders=2)
    with pytest.raises(funcaot.errors.FuncaotError, match="orders"):
        model.warm_up(torch.ones(4, 3), orders=-1)
    model.set_requires_gradient_sync(False)
    model(_own(0)).sum().backward()
    with pytest.raises(funcaot.errors.UnsupportedError, match="wait to be reduced"):
        model.warm_up(torch.ones(4, 3))
    model.set_requires_gradient_sync(True)
    model(_own(1)).sum().backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model.warm_up(torch.ones(4, 5))
    plain = layouts.Energy()
    for step in range(2):
        plain(_own(step)).sum().backward()
    for gradient, mine in zip(plain.parameters(), model.parameters(), strict=True):
        dist.all_reduce(gradient.grad)
        torch.testing.assert_close(mine.grad.full_tensor(), gradient.grad / 2)


def test_what_is_refused(ranks):
    ranks.run(_refused, deadline=60)
