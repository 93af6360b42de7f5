"""Trains two copies of a model, one of them compiled, and compares all that a user sees."""

import os
import time
import warnings

import torch

import funcaot
from funcaot.errors import CaptureWarning

BACKEND = os.environ.get("FUNCAOT_THIRD_PARTY_BACKEND", "inductor")
# That of models whose kernels take long to compile, where none is named.
OP_BY_OP = os.environ.get("FUNCAOT_THIRD_PARTY_BACKEND", "eager")
# To see what torch.compile makes of the same models: "torch.compile".
COMPILER = os.environ.get("FUNCAOT_THIRD_PARTY_COMPILER", "funcaot")
# For the table: programs made, and the time of a compiled step by that of eager, per check.
measured: list[tuple[int, float]] = []


def close(found, expected, tolerance):
    """Equal up to a part of the largest value, and of 1e-3 where all are zero but for rounding.

    The gradient of a bias before a batch norm is such a one.
    """
    assert found.shape == expected.shape
    scale = max(expected.abs().max().item(), 1e-3) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


def check(make, loss, batch, *, steps=5, programs=2, tolerance=1e-4):
    """Train for some steps, and compare losses, gradients and parameters with eager's.

    A call that runs without being compiled is an error.

    Args:
        make: Makes the model.
        loss: ``(function, *batch) -> scalar``.
        batch: The number of a step to the arguments of the loss.
        steps: How many steps.
        programs: How many programs may be made in all.
        tolerance: Relative to the largest value of a tensor.
    """
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    compiled, programs_made = compile_(models[1])
    runs = [(models[0], models[0]), (models[1], compiled)]
    optimizers = [torch.optim.SGD(model.parameters(), 1e-3) for model in models]
    for step in range(steps):
        losses = []
        for (_, function), optimizer in zip(runs, optimizers, strict=True):
            torch.manual_seed(step)
            given = batch(step)
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("error", CaptureWarning)
                losses.append(loss(function, *given))
                losses[-1].backward()
        close(losses[1].detach(), losses[0].detach(), tolerance)
        for first, second in zip(*(model.parameters() for model in models), strict=True):
            assert (first.grad is None) == (second.grad is None)
            if first.grad is not None:
                close(second.grad, first.grad, 10 * tolerance)
        for optimizer in optimizers:
            optimizer.step()
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        close(second.detach(), first.detach(), tolerance)
    made = programs_made()
    assert made <= programs or COMPILER != "funcaot", funcaot.report(compiled)
    if "FUNCAOT_THIRD_PARTY_TABLE" in os.environ:
        eager, ours = fastest([function for _, function in runs], loss, batch(1))
        measured.append((made, ours / eager))


def compile_(model):
    """A model, compiled, and how many programs were made of it."""
    if COMPILER == "funcaot":
        compiled = funcaot.compile(model, backend=BACKEND)
        return compiled, lambda: funcaot.report(compiled).cache_misses
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counted = torch._dynamo.utils.counters["stats"]
    compiled = torch.compile(model, backend="aot_eager" if BACKEND == "eager" else BACKEND)
    return compiled, lambda: counted["unique_graphs"]


def fastest(functions, loss, given, rounds=15):
    """Seconds of the fastest loss and backward of each function, in turns."""
    found = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            loss(function, *given).backward()
            found[index] = min(found[index], time.perf_counter() - start)
    return found
