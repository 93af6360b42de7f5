"""Recurrent layers of ``torch.nn`` as functions of parameters, and in elementary ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

WIDTH, HIDDEN, STEPS, BATCH = 3, 2, 3, 2
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Recurrent:
    """A layer, or with ``cell`` one step of it."""

    kind: str  # "tanh", "relu", "LSTM" or "GRU"
    cell: bool = False
    layers: int = 1
    both_ways: bool = False
    bias: bool = True
    projected: int = 0
    batch_first: bool = False
    alone: bool = False  # an input without a batch
    given_state: bool = False

    def module(self) -> nn.Module:
        torch.manual_seed(5)
        is_plain = self.kind in ("tanh", "relu")
        options: dict[str, Any] = {"bias": self.bias, "dtype": torch.float64}
        if is_plain:
            options["nonlinearity"] = self.kind
        name = "RNN" if is_plain else self.kind
        if self.cell:
            return getattr(nn, f"{name}Cell")(WIDTH, HIDDEN, **options)
        if self.projected:
            options["proj_size"] = self.projected
        return getattr(nn, name)(
            WIDTH,
            HIDDEN,
            self.layers,
            bidirectional=self.both_ways,
            batch_first=self.batch_first,
            **options,
        )

    def input(self, step: int = 0) -> Tensor:
        shape = (BATCH, WIDTH) if self.cell else (STEPS, BATCH, WIDTH)
        if self.batch_first:
            shape = (BATCH, STEPS, WIDTH)
        if self.alone:
            shape = (WIDTH,) if self.cell else (STEPS, WIDTH)
        return drawn(shape, 7 + step)

    def states(self, x: Tensor) -> Any:
        """What the first step starts from, computed from the input so that it is differentiated."""
        if not self.given_state:
            return ()
        batch = () if self.alone else (BATCH,)
        lead = () if self.cell else (self.layers * (2 if self.both_ways else 1),)
        hidden = x.mean() * drawn((*lead, *batch, self.projected or HIDDEN), 3)
        if self.kind != "LSTM":
            return (hidden,)
        return ((hidden, x.sum().sin() * drawn((*lead, *batch, HIDDEN), 4)),)

    def fused(self, module: nn.Module):
        """The module's function: all of its outputs, joined."""

        def run(parameters: Parameters, x: Tensor) -> Tensor:
            return joined(functional_call(module, parameters, (x, *self.states(x))))

        return run

    def plain(self, parameters: Parameters, x: Tensor) -> Tensor:
        """The same in elementary ops."""
        states = self.states(x)
        if self.alone:
            x = x[None] if self.cell else x[:, None]
        if self.batch_first:
            x = x.transpose(0, 1)
        found = _layer(self, parameters, x, states)
        if self.alone:
            dim = 0 if self.cell else 1
            found = [found[0].squeeze(dim), *(part.squeeze(dim) for part in found[1:])]
        if self.batch_first:
            found = [found[0].transpose(0, 1), *found[1:]]
        return joined(found)


def drawn(shape, seed: int) -> Tensor:
    """What looks random and draws nothing, as it is also called where a capture looks."""
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=torch.float64) + (1.7 * seed + 0.3)
    return (steps * steps * 1.37).sin().reshape(shape)


def joined(outputs: Any) -> Tensor:
    parts = []
    for output in outputs if isinstance(outputs, tuple | list) else [outputs]:
        inner = output if isinstance(output, tuple | list) else [output]
        parts.extend(part.reshape(-1) for part in inner)
    return torch.cat(parts)


def _layer(layer: Recurrent, parameters: Parameters, x: Tensor, states: Any) -> list[Tensor]:
    """Outputs, and the last states, with a batch and time first."""
    width = layer.projected or HIDDEN
    batch = x.shape[0 if layer.cell else 1]
    ways = 2 if layer.both_ways else 1
    hidden = x.new_zeros(layer.layers * ways, batch, width)
    cells = x.new_zeros(layer.layers * ways, batch, HIDDEN)
    if states and layer.kind == "LSTM":
        hidden, cells = (given.reshape(-1, batch, given.shape[-1]) for given in states[0])
    elif states:
        hidden = states[0].reshape(-1, batch, width)
    if layer.cell:
        found = _step(layer, parameters, "", x, (hidden[0], cells[0]))
        return list(found) if layer.kind == "LSTM" else [found[0]]
    last = []
    for number in range(layer.layers):
        outputs = []
        for way in range(ways):
            place, suffix = number * ways + way, f"_l{number}" + "_reverse" * way
            state, rows = (hidden[place], cells[place]), []
            for row in reversed(x.unbind(0)) if way else x.unbind(0):
                state = _step(layer, parameters, suffix, row, state)
                rows.append(state[0])
            outputs.append(torch.stack(rows[::-1] if way else rows))
            last.append(state)
        x = torch.cat(outputs, -1)
    ends = [torch.stack([state[0] for state in last])]
    if layer.kind == "LSTM":
        ends.append(torch.stack([state[1] for state in last]))
    return [x, *ends]


def _step(layer, parameters, suffix, row, state):
    hidden, cell = state
    zero = row.new_zeros(())
    of_row = row @ parameters[f"weight_ih{suffix}"].T + parameters.get(f"bias_ih{suffix}", zero)
    of_old = hidden @ parameters[f"weight_hh{suffix}"].T + parameters.get(f"bias_hh{suffix}", zero)
    if layer.kind == "LSTM":
        gate, forget, new, out = (of_row + of_old).chunk(4, -1)
        cell = forget.sigmoid() * cell + gate.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        if layer.projected:
            hidden = hidden @ parameters[f"weight_hr{suffix}"].T
        return hidden, cell
    if layer.kind == "GRU":
        reset, update, new = of_row.chunk(3, -1)
        old_reset, old_update, old = of_old.chunk(3, -1)
        update = (update + old_update).sigmoid()
        new = (new + (reset + old_reset).sigmoid() * old).tanh()
        return new + update * (hidden - new), cell
    total = of_row + of_old
    return (total.tanh() if layer.kind == "tanh" else total.relu()), cell


KINDS = ("tanh", "relu", "LSTM", "GRU")
LAYERS: dict[str, Recurrent] = {
    **{kind: Recurrent(kind) for kind in KINDS},
    **{f"{kind}_cell": Recurrent(kind, cell=True) for kind in KINDS},
    **{f"{kind}_cell_state": Recurrent(kind, cell=True, given_state=True) for kind in KINDS},
    **{
        f"{kind}_deep": Recurrent(
            kind, layers=2, both_ways=True, given_state=True, batch_first=kind != "GRU"
        )
        for kind in KINDS
    },
    "LSTM_alone": Recurrent("LSTM", alone=True, given_state=True),
    "GRU_alone": Recurrent("GRU", alone=True, bias=False),
    "GRU_cell_alone": Recurrent("GRU", cell=True, alone=True, given_state=True),
    "LSTM_without_bias": Recurrent("LSTM", bias=False),
    "LSTM_projected": Recurrent("LSTM", projected=1, given_state=True),
    "LSTM_projected_both_ways": Recurrent("LSTM", projected=1, both_ways=True, layers=2),
}
