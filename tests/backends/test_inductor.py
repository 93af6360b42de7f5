"""Inductor's on-disk cache serves a second process."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
import torch
from torch._dynamo.utils import counters
import funcaot

class Cube(funcaot.Function):
    @staticmethod
    def forward(x):
        return x ** 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))

def loss(x):
    return Cube.apply(torch.nn.functional.dropout(model(x), 0.5)).sum()

x = torch.randn(5, 4)
value = funcaot.compile(loss)(x)
value.backward()
found = {name: count for name, count in counters["inductor"].items() if "fxgraph_cache" in name}
found["result"] = [value.item(), model[0].weight.grad.sum().item()]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_second_process_finds_every_graph_in_the_cache(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])

    first, second = run(), run()
    assert first.pop("result") == second.pop("result")
    assert first == {"fxgraph_cache_miss": 2}
    assert second == {"fxgraph_cache_hit": 2}
