"""Draws as functions of a generator's state; a tape records them for generators made inside.

Each takes the state as a tensor and returns, behind its numbers, the state that it leaves. So a
draw depends on nothing else and changes nothing, as any op of a functional graph.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.library import Library, register_fake
from torch.utils._python_dispatch import _disable_current_modes

from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tensors.random.made_generators import REAL, in_state

__all__ = ["OF_TORCH", "SEEDED", "STATE", "numbers_and_state"]

# Torch's functional ops that take a generator; versions of torch have more or fewer.
_DRAWS = """
    bernoulli.default bernoulli.p bernoulli.Tensor binomial.default cauchy.default
    exponential.default geometric.default log_normal.default multinomial.default
    normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor normal.float_float
    normal_functional.default poisson.default rand.generator rand_like.generator
    randint.generator randint.low_generator randint_like.generator
    randint_like.Tensor_generator randint_like.low_generator_dtype randn.generator
    randn_like.generator random.default random.from random.to randperm.generator
    rrelu_with_noise_functional.default uniform.default
    _fused_dropout.default _sample_dirichlet.default _standard_gamma.default
"""


def _known(name: str) -> OpOverload | None:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


_library = Library("funcaot", "FRAGMENT")
_library.define("generator_state(Tensor seed, Device device) -> Tensor")


def _state(seed: torch.Tensor, device: torch.device) -> torch.Tensor:
    return REAL(device).manual_seed(int(seed)).get_state()


def _fake_state(seed: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(_bytes_of(device), dtype=torch.uint8, device="cpu")


@functools.cache
def _bytes_of(device: torch.device) -> int:
    """How many bytes the state of a generator has."""
    with _disable_current_modes():
        return REAL(device).get_state().numel()


_library.impl("generator_state", _state, "CompositeExplicitAutograd")
register_fake("funcaot::generator_state", _fake_state)

# The state of a generator that has just been given a seed.
STATE: OpOverload = torch.ops.funcaot.generator_state.default


def numbers_and_state(results: Any) -> tuple[Any, torch.Tensor]:
    """What a draw of torch's own returns, and the state that it leaves."""
    *drawn, state = results
    return (drawn[0] if len(drawn) == 1 else tuple(drawn)), state


def _schema(op: OpOverload, name: str) -> str:
    """That of an op, with a state and a device in place of a generator."""
    text = str(op._schema)
    text = re.sub(r"^[\w:.]+\(", f"{name}(Tensor state, Device device_of_state, ", text)
    text = re.sub(r"\bfrom\b", "low", text)  # a keyword of Python's
    text = re.sub(r", Generator\? generator(=None)?", "", text)
    text = re.sub(r", \*\)", ")", text.replace("*, Generator? generator, ", "*, "))
    given, results = text.rsplit(" -> ", 1)
    return f"{given} -> ({results.strip('()')}, Tensor)"


def _without_generator(op: OpOverload) -> Callable[..., Any]:
    """What looks the same, for symbolic sizes too."""
    name = op._overloadname
    if "generator" not in name:
        return op
    name = re.sub("_generator|generator_|generator", "", name)
    return getattr(op.overloadpacket, name or "default")  # type: ignore[no-any-return]


def _moves(operand: Any) -> bool:
    """Whether something is a tensor with a derivative."""
    if not isinstance(operand, torch.Tensor):
        return False
    if operand.is_inference():  # torch has no tangent for it
        return False
    return operand.requires_grad or forward_ad.unpack_dual(operand, level=0).tangent is not None


class _Drawing:
    """Draws by an op of torch from a generator in a state."""

    def __init__(self, op: OpOverload) -> None:
        self._op = op

    def __call__(
        self, state: torch.Tensor, of: torch.device, /, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        generator = REAL(of)
        generator.set_state(state)
        drawn = self._op(*args, **kwargs, generator=generator)
        return (*(drawn if isinstance(drawn, tuple) else (drawn,)), generator.get_state())

    def differentiated(
        self, state: torch.Tensor, of: torch.device, /, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        """The same where autograd looks on: the derivative is that of torch's op."""
        if not any(map(_moves, (*args, *kwargs.values()))):
            with torch._C._AutoDispatchBelowAutograd():
                return SEEDED[self._op](state, of, *args, **kwargs)  # type: ignore[no-any-return]
        if (made := in_state(of, state)) is None:
            return self(state, of, *args, **kwargs)
        drawn = self._op(*args, **kwargs, generator=made)
        return (*(drawn if isinstance(drawn, tuple) else (drawn,)), made.state)

    def fake(
        self, state: torch.Tensor, of: torch.device, /, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        """What the results look like."""
        drawn = _without_generator(self._op)(*args, **kwargs)
        return (*(drawn if isinstance(drawn, tuple) else (drawn,)), torch.empty_like(state))


def _seeded(op: OpOverload) -> OpOverload:
    name = "seeded_" + "_".join(filter(None, str(op).split(".")[1:])).replace("_default", "")
    _library.define(_schema(op, name))
    drawing = _Drawing(op)
    _library.impl(name, drawing, "CompositeExplicitAutograd")
    _library.impl(name, drawing.differentiated, "Autograd")
    register_fake(f"funcaot::{name}", drawing.fake)
    return getattr(torch.ops.funcaot, name).default  # type: ignore[no-any-return]


# For each of torch's draws, that which takes a state; and back.
SEEDED: dict[Any, OpOverload] = {
    op: _seeded(op) for op in map(_known, _DRAWS.split()) if op is not None
}
OF_TORCH: dict[Any, OpOverload] = {seeded: op for op, seeded in SEEDED.items()}
