"""Many calls that keep changing, in two threads: right values, and memory that stays bounded."""

import gc
import os
import threading
import time
import warnings

import pytest
import torch

import funcaot

CALLS = int(os.environ.get("FUNCAOT_SOAK_CALLS", "10_000"))
SECONDS = float(os.environ.get("FUNCAOT_SOAK_SECONDS", "15"))
BOUND = 24
KINDS = ("no grad", "constant", "forward", "dense", "expanded", "twice", "written", "vmap")


def resident_megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Worker:
    """Calls compiled functions in ever new ways, and checks each result."""

    def __init__(self, seed, module, compiled):
        self.random = torch.Generator().manual_seed(seed)
        self.module, self.compiled = module, compiled
        self.calls = self.wrong = 0
        self.error = None

    def pick(self, count):
        return int(torch.randint(count, (), generator=self.random))

    def call(self):
        # A burst of calls that look the same, so that generated code runs, then something else.
        size, scale, kind = 1 + self.pick(40), self.pick(3), KINDS[self.pick(len(KINDS))]
        compiled = self.compiled[self.pick(len(self.compiled))]
        for _ in range(1 + self.pick(400)):
            values = torch.randn(size, 4, generator=self.random)
            results = [self.once(f, values, scale, kind) for f in (compiled, self.module)]
            self.calls += 1
            self.wrong += not all(
                torch.allclose(ours, theirs, atol=1e-4)
                for ours, theirs in zip(*results, strict=True)
            )

    def once(self, function, values, scale, kind):
        x = values.clone()
        if kind == "vmap":
            return [torch.vmap(lambda row: function(row, scale))(x)]
        if kind == "written":
            return [function(x, scale, write=True), x]
        if kind in ("no grad", "constant"):
            with torch.set_grad_enabled(kind == "constant"):
                return [function(x, scale)]
        out = function(x.requires_grad_(), scale)
        if kind == "forward":
            return [out]
        tangent = torch.ones_like(out) if kind == "dense" else torch.ones(()).expand_as(out)
        twice = kind == "twice"
        (first,) = torch.autograd.grad(out, x, tangent, create_graph=twice)
        return [first, *torch.autograd.grad(first.sum(), x)] if twice else [first]

    def run(self, deadline, total):
        try:
            while time.monotonic() < deadline or self.calls < total:
                self.call()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            self.error = error


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, scale, write=False):
        y = torch.tanh(self.linear(x)) * scale
        if write:
            x.mul_(2)
        return y


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's /proc")
@pytest.mark.long
def test_soak():
    module = Scaled()
    # One program per size keeps the cache busy; open sizes are the default.
    compiled = [funcaot.compile(module, backend="eager", dynamic=d) for d in (False, None)]
    workers = [Worker(seed, module, compiled) for seed in range(2)]
    start = time.monotonic()
    threads = [
        threading.Thread(target=worker.run, args=(start + SECONDS, CALLS // 2))
        for worker in workers
    ]
    sizes = []
    with funcaot.config.patch(entries_per_function=BOUND), warnings.catch_warnings():
        warnings.simplefilter("ignore", funcaot.errors.RecompileWarning)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(1)
            gc.collect()
            sizes.append(resident_megabytes())
            assert all(len(funcaot.report(each).entries) <= BOUND for each in compiled)
        for thread in threads:
            thread.join()
    assert [worker.error for worker in workers] == [None, None]
    assert sum(worker.wrong for worker in workers) == 0
    assert sum(worker.calls for worker in workers) >= CALLS
    third = len(sizes) // 3
    grown = max(sizes[-third:]) - max(sizes[third : 2 * third])
    misses = [funcaot.report(each).cache_misses for each in compiled]
    print(
        f"{sum(worker.calls for worker in workers)} calls in {time.monotonic() - start:.0f} s, "
        f"{misses} compilations, {grown:+.1f} MB from the middle third to the last"
    )
    assert grown < 16, sizes
