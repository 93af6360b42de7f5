"""Derivatives of a transformer's derivatives, with fused attention kept.

A small transformer learns to predict the bytes of a text. Every few steps its sharpness is
computed, the largest eigenvalue of the loss's Hessian, by Lanczos on products of the Hessian with
vectors. And a step of a MeanFlow-like model takes the tangent of a network with attention, and
then the gradient of a loss on that. Both need derivatives of attention that torch has for its MATH
kernel only, whose memory grows with the square of the length. Everything that is printed is
measured in this run; each way runs in a process of its own.

    python examples/attention_hessian.py [--steps 60] [--tokens 1024] [--figure PATH]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import funcaot

WIDTH, HEADS, LAYERS = 32, 2, 2
TRAINED_ON, RATE, LANCZOS_STEPS = 64, 0.2, 12
WAYS = ("MATH kernel, eager", "funcaot.install()", "funcaot.compile")
TEXT = Path(__file__).resolve().parents[1] / "README.md"


# --- the networks ----------------------------------------------------------------


class Block(nn.Module):
    """Attention and a network of two layers, each added to what came in."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of shape ``(batch, tokens, WIDTH)``."""
        heads = self.mixed(self.first(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.network(self.second(x))


class ByteModel(nn.Module):
    """Predicts the next byte."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(128, WIDTH), nn.Embedding(tokens, WIDTH)
        self.blocks = nn.Sequential(*[Block(causal=True) for _ in range(LAYERS)])
        self.read_out = nn.Linear(WIDTH, 128)

    def forward(self, text: Tensor) -> Tensor:
        """The loss of ``text``, integers of shape ``(batch, tokens + 1)``."""
        known, wanted = text[:, :-1], text[:, 1:]
        hidden = self.bytes(known) + self.places.weight[: known.shape[1]]
        return F.cross_entropy(self.read_out(self.blocks(hidden)).flatten(0, 1), wanted.flatten())


class Velocity(nn.Module):
    """The mean velocity of a sequence between two times."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Linear(2, WIDTH)
        self.blocks = nn.Sequential(*[Block(causal=False) for _ in range(LAYERS)])

    def forward(self, z: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """``z`` of shape ``(batch, tokens, WIDTH)``, the times of shape ``(batch, 1, 1)``."""
        return self.blocks(z + self.times(torch.cat([start, end], -1)))


def mean_flow_loss(model: nn.Module, data: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """The loss of a mean flow: the velocity's change along its path is a tangent."""
    start, end = times.min(0).values, times.max(0).values
    z, velocity = (1 - end) * data + end * noise, noise - data
    tangents = (velocity, torch.zeros_like(start), torch.ones_like(end))
    mean, change = torch.func.jvp(model, (z, start, end), tangents)
    return (mean - (velocity - (end - start) * change).detach()).square().mean()


# --- the sharpness ---------------------------------------------------------------


def top_eigenvalue(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> float:
    """The largest eigenvalue of a symmetric matrix, by Lanczos.

    Args:
        product: The matrix times a vector.
        start: A vector to begin with; its kind is that of all others.
        steps: How many products to take.
    """
    basis, diagonal, beside = [start / start.norm()], [], []
    for _ in range(steps):
        found = product(basis[-1])
        diagonal.append(found @ basis[-1])
        for _ in range(2):  # once more, as the first time leaves rounding errors
            for vector in basis:
                found = found - (found @ vector) * vector
        beside.append(found.norm())
        if beside[-1] < 1e-6:
            break
        basis.append(found / beside[-1])
    small = torch.diag(torch.stack(diagonal))
    if len(diagonal) > 1:
        off = torch.stack(beside[: len(diagonal) - 1])
        small = small + torch.diag(off, 1) + torch.diag(off, -1)
    return torch.linalg.eigvalsh(small)[-1].item()


def hessian_product(loss: Tensor, parameters: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The Hessian of a loss times a vector that has all parameters in a row."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])

    def product(vector: Tensor) -> Tensor:
        found = torch.autograd.grad(flat, parameters, vector, retain_graph=True)
        return torch.cat([part.flatten() for part in found])

    return product


def sharpness(model: nn.Module, loss: Tensor, steps: int) -> float:
    """The largest eigenvalue of the Hessian of a loss by a model's parameters."""
    parameters = list(model.parameters())
    size = sum(parameter.numel() for parameter in parameters)
    start = torch.randn(size, generator=torch.Generator().manual_seed(1))
    return top_eigenvalue(hessian_product(loss, parameters), start, steps)


def texts(tokens: int, batch: int) -> Iterator[Tensor]:
    """Pieces of the text, drawn at random; the first one is the same in every run."""
    data = torch.tensor([byte for byte in TEXT.read_bytes() if byte < 128])
    data = data.repeat(-(-(tokens + 2) // len(data)))
    generator = torch.Generator().manual_seed(0)
    while True:
        places = torch.randint(len(data) - tokens, (batch,), generator=generator)
        yield torch.stack([data[place : place + tokens + 1] for place in places.tolist()])


def train(steps: int, every: int, backend: str) -> list[tuple[int, float, float]]:
    """Train with gradient descent; step, loss and sharpness, every few steps."""
    torch.manual_seed(0)
    model = ByteModel(TRAINED_ON)
    compiled = funcaot.compile(model, backend=backend)
    text, curve = next(texts(TRAINED_ON, 4)), []
    for step in range(steps + 1):
        loss = compiled(text)
        if step % every == 0:
            found = sharpness(model, loss, LANCZOS_STEPS)
            curve.append((step, loss.item(), found))
            print(f"step {step:4d}   loss {loss.item():.3f}   sharpness {found:8.2f}", flush=True)
            loss = compiled(text)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
    return curve


def draw(curve: list[tuple[int, float, float]], path: Path) -> None:
    """The curve of the sharpness, with the line beyond which gradient descent isn't stable."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    steps, losses, found = zip(*curve, strict=True)
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(6, 5), layout="tight")
    above.plot(steps, losses)
    above.set_ylabel("loss")
    below.plot(steps, found, marker="o", label="largest eigenvalue")
    below.axhline(2 / RATE, linestyle="--", color="gray", label="2 / learning rate")
    below.set_ylabel("sharpness")
    below.set_xlabel("step of gradient descent")
    below.legend()
    figure.savefig(path, dpi=120)


# --- what it costs ---------------------------------------------------------------


def maker(way: str, backend: str) -> Callable[..., Callable[..., Tensor]]:
    return lambda f: funcaot.compile(f, backend=backend) if way == "funcaot.compile" else f


def surroundings(way: str) -> contextlib.AbstractContextManager[object]:
    if way == WAYS[0]:
        return sdpa_kernel(SDPBackend.MATH)
    return funcaot.install() if way == WAYS[1] else contextlib.nullcontext()


def products_of(way: str, tokens: int, backend: str) -> Callable[[], Tensor]:
    """One product of the Hessian with a vector, loss and gradient included."""
    torch.manual_seed(0)
    model = ByteModel(tokens)
    loss_of, text = maker(way, backend)(model), next(texts(tokens, 1))
    parameters = list(model.parameters())
    vector = torch.ones(sum(parameter.numel() for parameter in parameters))
    return lambda: hessian_product(loss_of(text), parameters)(vector)


def flow_steps_of(way: str, tokens: int, backend: str) -> Callable[[], Tensor]:
    """One step's gradient of the mean flow."""
    torch.manual_seed(0)
    model = Velocity()
    data, noise = torch.randn(2, 1, tokens, WIDTH)
    times = torch.tensor([0.2, 0.7]).reshape(2, 1, 1, 1)
    loss_of = maker(way, backend)(lambda *operands: mean_flow_loss(model, *operands))

    def run() -> Tensor:
        loss = loss_of(data, noise, times)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([gradient.flatten() for gradient in gradients])

    return run


TASKS = {"Hessian times vector": products_of, "MeanFlow step": flow_steps_of}


def resident(name: str) -> int:
    """This process's memory in kilobytes: of now (``VmRSS``), or the most there was (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def begin_peak() -> int:
    """Forget the most memory there was (Linux); the memory of now, in kilobytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def measure(task: str, way: str, tokens: int, backend: str) -> dict[str, float]:
    """Seconds of a run, after the first, how much memory it added at most, and a checksum."""
    run = TASKS[task](way, tokens, backend)
    with surroundings(way):
        run()  # what torch and a compiler allocate once isn't counted
        before = begin_peak()
        run()
        peak = resident("VmHWM") - before
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            result = run()
            seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "megabytes": peak / 1024, "norm": result.norm().item()}


def compare(tokens: int, backend: str) -> None:
    """Print what each way costs, measured in a process of its own."""
    for task in TASKS:
        print(f"\n{task}, {tokens} tokens")
        for way in WAYS:
            told = [f"--measure={task}", f"--way={way}", f"--tokens={tokens}"]
            command = [sys.executable, __file__, *told, f"--backend={backend}"]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            cost = json.loads(found.splitlines()[-1])
            print(
                f"  {way:20s} {cost['seconds']:7.3f} s {cost['megabytes']:8.0f} MB more"
                f"   norm {cost['norm']:.5f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--figure", type=Path, default=Path("attention_hessian.png"))
    parser.add_argument("--measure", choices=list(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    told = parser.parse_args()
    torch.set_num_threads(1)
    if told.measure:
        print(json.dumps(measure(told.measure, told.way, told.tokens, told.backend)))
        return
    draw(train(told.steps, told.every, told.backend), told.figure)
    print(f"drawn to {told.figure}")
    compare(told.tokens, told.backend)


if __name__ == "__main__":
    main()
