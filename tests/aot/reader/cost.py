"""Print what it costs to look at everything that a call depends on; not a test.

    python -m tests.aot.reader.cost [--seconds S]

Microseconds of CPU time of a call on tensors so small that nothing else counts, and milliseconds of
the first call, against ``torch.compile``; both with ``backend="eager"``, in turns.
"""

import argparse
import functools
import statistics
import sys
import time
import types

import numpy as np
import torch
from torch import nn

import funcaot

TABLE = {f"k{i}": float(i) for i in range(10_000)}
OBJECTS = {f"k{i}": types.SimpleNamespace(k=float(i)) for i in range(10_000)}
LARGE = types.ModuleType("large")
vars(LARGE).update({f"name_{i}": i for i in range(10_000)})
sys.modules["large"] = LARGE


def one_tensor(x):
    return x.sin().cos()


class Layer(nn.Module):
    """A submodule with a setting, a parameter and a flag that it reads."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.scale = 2.0

    def forward(self, x):
        return x * self.weight * self.scale if self.training else x


def closure_over_a_dictionary():
    table = dict(TABLE)
    return lambda x: x * table["k17"]


def attributes_of_large_modules(x):
    return torch.sin(x) * LARGE.name_17 * float(np.pi)


def one_of_many_objects(x):
    return x * OBJECTS["k17"].k


class Config:
    """An object with 40 settings, as a transformer's configuration has."""

    def __init__(self):
        vars(self).update({f"setting_{i}": i for i in range(40)})

    def scaled(self, x):
        return x * self.setting_3


CONFIG = Config()


def one_of_many_settings(x):
    return CONFIG.scaled(x)


def cases():
    return {
        "plain function of one tensor": one_tensor,
        "module of 50 submodules": nn.Sequential(*(Layer() for _ in range(50))),
        "closure over 10,000 entries, one read": closure_over_a_dictionary(),
        "global dictionary of 10,000 objects, one read": one_of_many_objects,
        "attributes of np, torch and a module of 10,000 names": attributes_of_large_modules,
        "one of 40 settings of an object": one_of_many_settings,
    }


def measure(calls, seconds):
    """Median microseconds a call, in turns."""
    samples = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            start, count = time.process_time(), 0
            while time.process_time() - start < seconds / 7:
                for _ in range(20):
                    call()
                count += 20
            samples[name].append((time.process_time() - start) / count * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def first_call(compiled, x):
    start = time.perf_counter()
    compiled(x)
    return (time.perf_counter() - start) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="per contestant and case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.ones(4)
    for wrap in (funcaot.compile, torch.compile):
        wrap(lambda x: x.cos(), backend="eager")(x)
    print(f"{'':54s}{'first call, ms':>20s}{'no grad, us':>26s}{'grad, us':>26s}")
    for name, function in cases().items():
        both = {
            "funcaot": funcaot.compile(function, backend="eager"),
            "torch.compile": torch.compile(function, backend="eager"),
        }
        firsts = [first_call(compiled, x) for compiled in both.values()]
        line = f"{name:54s}" + "".join(f"{first:10.1f}" for first in firsts)
        for grad in (False, True):
            argument = x.clone().requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                for compiled in both.values():
                    compiled(argument), compiled(argument)
                calls = {who: functools.partial(c, argument) for who, c in both.items()}
                times = measure(calls, options.seconds)
            ours, theirs = times.values()
            line += f"{ours:10.1f}{theirs:8.1f} {theirs / ours:6.1f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
