"""``test_sessions`` runs these: the same drawn actions in an eager world and in a compiled one.

A session is a list of actions. After each, everything that a user could look at is compared:
what came back, parameters, buffers, gradients, the optimizer's state, plain attributes, the
generator of random numbers, and errors.
"""

from __future__ import annotations

import math
import random

import torch

import funcaot
from funcaot.errors import FuncaotError
from tests.sessions.actions import ACTIONS
from tests.sessions.worlds import World

TOLERANCE = 1e-5  # float32 is among the types


class SessionError(AssertionError):
    """Where the worlds differ, after which actions."""


def drawn(seed, length):
    """Names of actions with the seeds of what they draw."""
    draw = random.Random(seed)
    names = list(ACTIONS)
    weights = [ACTIONS[name][1] for name in names]
    return [(name, draw.randrange(1 << 30)) for name in draw.choices(names, weights, k=length)]


def perform(world, name, seed):
    """One action in one world: what it gave, or the error it raised."""
    torch.set_rng_state(world.rng)
    try:
        return ACTIONS[name][0](world, random.Random(seed))
    except FuncaotError:
        raise
    except Exception as error:  # noqa: BLE001 (errors are compared)
        return error
    finally:
        world.rng = torch.get_rng_state()


def differences(wanted, got, path=""):
    """Where two values differ, in words."""
    if isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor):
        yield from _of_tensors(wanted, got, path)
    elif isinstance(wanted, Exception) or isinstance(got, Exception):
        if type(wanted) is not type(got):
            yield f"{path}: {wanted!r:.200} in eager, {got!r:.300} here"
    elif type(wanted) is not type(got):
        yield f"{path}: a {type(wanted).__name__} in eager, {got!r:.80} here"
    elif isinstance(wanted, dict):
        if list(wanted) != list(got):
            yield f"{path}: keys {list(wanted)} in eager, {list(got)} here"
            return
        for key, value in wanted.items():
            yield from differences(value, got[key], f"{path}[{key!r}]")
    elif isinstance(wanted, (list, tuple)):
        if len(wanted) != len(got):
            yield f"{path}: {len(wanted)} items in eager, {len(got)} here"
            return
        for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(wanted, float):
        if not math.isclose(wanted, got, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{path}: {wanted!r} in eager, {got!r} here"
    elif wanted != got:
        yield f"{path}: {wanted!r} in eager, {got!r} here"


def _of_tensors(wanted, got, path):
    for name in ("shape", "dtype", "requires_grad", "is_leaf"):
        one, other = getattr(wanted, name), getattr(got, name)
        if one != other:
            yield f"{path}: {name} {one} in eager, {other} here"
            return
    if wanted.stride() != got.stride():
        yield f"{path}: strides {wanted.stride()} in eager, {got.stride()} here"
    one, other = wanted.detach(), got.detach()
    if not one.is_floating_point():
        if not torch.equal(one, other):
            yield f"{path}: other values"
        return
    if not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        yield f"{path}: {one.flatten()[:4].tolist()} in eager, {other.flatten()[:4].tolist()} here"


def explodes(world):
    """Whether numbers are so large that rounding grows without bounds."""
    tensors = [value for value in world.state().values() if isinstance(value, torch.Tensor)]
    floating = [value.detach() for value in tensors if value.is_floating_point()]
    return not all(bool((value.abs() < 1e3).all()) for value in floating)


def run(actions, seed, backend, folder=None):
    """Run a session.

    Args:
        actions: What ``drawn`` gave.
        seed: Of the worlds.
        backend: Of the compiled one.
        folder: Where this one finds programs, and leaves its own; None for nowhere.

    Returns:
        The refusal that ended it, if one did.

    Raises:
        SessionError: The worlds differ.
    """
    eager, compiled = World(seed, None), World(seed, backend, folder)
    try:
        return _compare(eager, compiled, actions)
    finally:
        if folder is not None:
            compiled.save(folder)


def _compare(eager, compiled, actions):
    for index, (name, number) in enumerate(actions):
        wanted = perform(eager, name, number)
        try:
            got = perform(compiled, name, number)
        except FuncaotError as refusal:
            return index, refusal
        found = list(differences(wanted, got, "result"))
        if isinstance(wanted, Exception):  # eager accumulates what it had before it raised
            for world in (eager, compiled):
                world.net.zero_grad()
            if name != "fail":  # an error of torch's, which comes at another moment
                compiled.net.calls, compiled.rng = eager.net.calls, eager.rng
        if explodes(eager):
            return None
        found += differences(eager.state(), compiled.state(), "state")
        if found:
            done = ", ".join(each for each, _ in actions[: index + 1])
            raise SessionError(f"after {done}:\n" + "\n".join(found[:8]))
    return None


def shrunk(actions, seed, backend):
    """A shorter session that fails, too."""

    def fails(some):
        funcaot.clear()
        try:
            run(some, seed, backend)
        except SessionError:
            return True
        return False

    index = len(actions) - 1
    while index >= 0:
        fewer = actions[:index] + actions[index + 1 :]
        if fails(fewer):
            actions = fewer
        index -= 1
    return actions
