"""Whole steps with a `GradScaler`: scales, skipped steps and parameters are those of eager."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcaot


class Own(torch.amp.GradScaler):
    """A scaler of the user's."""

    def update(self, new_scale=None):
        self.updates = getattr(self, "updates", 0) + 1
        super().update(new_scale)


def run(scaler_class, compiler, *, clipped, accumulated):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = scaler_class("cpu", init_scale=2.0**10, growth_interval=2)

    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss / accumulated).backward()
        if accumulated == 1:
            if clipped:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.detach()

    compiled = compiler(step)
    seen = []
    for number in range(8):
        torch.manual_seed(number)
        x = torch.randn(7 if number % 3 else 5, 6)
        if number in (2, 5):
            x[0, 0] = torch.inf
        seen += [compiled(x, x[:, :1].nan_to_num(0, 0, 0)), scaler.get_scale()]
        if accumulated > 1 and number % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if number == 6:
            scaler.load_state_dict({**scaler.state_dict(), "scale": 64.0})
    seen += [getattr(scaler, "updates", None), *(p.detach() for p in model.parameters())]
    return seen, compiled


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("scaler", [torch.amp.GradScaler, Own])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_as_eager(backend, scaler, clipped, accumulated):
    kind = {"clipped": clipped, "accumulated": accumulated}
    expected, _ = run(scaler, lambda step: step, **kind)
    found, compiled = run(scaler, lambda step: funcaot.compile(step, backend=backend), **kind)
    bound = 1e-6 if backend == "eager" else 2e-2  # Inductor rounds to bfloat16 less often.
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound, equal_nan=True)
    assert len(funcaot.report(compiled).entries) <= 6
