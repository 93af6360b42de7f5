"""Steps that an error ends in the middle, which the function or a stage of it catches."""

import pytest
import torch

import funcaot


class Stepper(torch.optim.Optimizer):
    """Averages gradients; asks a size, or fails, at a point of its step."""

    def __init__(self, parameters, at, inner=None, kind="size"):
        super().__init__(list(parameters), {})
        self.at, self.inner, self.kind = at, inner, kind
        self.picked = {}

    def _ask(self, point, parameter):
        if point != self.at:
            return
        if self.kind == "error":
            raise ValueError("stops here")
        if parameter not in self.picked:
            self.picked[parameter] = (self.state[parameter].get("gone", parameter) > 0).nonzero()

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            self._ask("first", parameter)
            if not state:
                state["mean"] = torch.zeros_like(parameter)
                state["last"] = torch.zeros_like(parameter)
            self._ask("made", parameter)
            state["last"] = parameter.grad * 0.5
            self._ask("replaced", parameter)
            state["mean"].mul_(0.9).add_(state["last"])
            self._ask("written", parameter)
            if self.inner is not None:
                try:
                    self.inner.step()
                except ValueError:
                    state["mean"].add_(1)
            parameter.sub_(state["mean"], alpha=0.1)


def lived(kind, at, nested, compiled):
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(5))
    optimizer = Stepper([parameter], at, kind=kind)
    optimizers = [optimizer]
    if nested:
        other = torch.nn.Parameter(torch.randn(5))
        optimizer = Stepper([parameter], None, inner=Stepper([other], at, kind=kind))
        optimizers = [optimizer, optimizer.inner]
    parameters = [p for each in optimizers for p in each.param_groups[0]["params"]]

    def step(x):
        for each in parameters:
            each.grad = None
        loss = torch.stack([(each * x).square().sum() for each in parameters]).sum()
        loss.backward()
        try:
            optimizer.step()
        except ValueError:
            loss = loss + 1
        return loss.detach()

    run = funcaot.compile(step, backend="eager") if compiled else step
    seen = []
    for number in range(3):
        torch.manual_seed(number)
        seen.append(run(torch.randn(5)))
        seen += [each.detach().clone() for each in parameters]
        for each in optimizers:
            for state in each.state.values():
                seen += [state[key].clone() for key in sorted(state)]
            seen += [value.clone() for value in each.picked.values()]
    return seen


@pytest.mark.parametrize(
    "nested", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "inside"]
)
@pytest.mark.parametrize("at", ["first", "made", "replaced", "written"])
@pytest.mark.parametrize("kind", ["size", "error"])
def test_the_state_is_eagers(kind, at, nested):
    expected = lived(kind, at, nested, compiled=False)
    found = lived(kind, at, nested, compiled=True)
    torch.testing.assert_close(found, expected)
