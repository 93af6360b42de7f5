"""What a capture keeps of the values that it computes for those that somebody asks for."""

import pytest
import torch

import funcaot
from funcaot.aot.tape.known import kept

ROUNDS = 20


@pytest.fixture
def halved():
    """An op that counts how often it computes."""
    with torch.library._scoped_library("funcaot_test_kept", "FRAGMENT") as library:
        library.define("halve(Tensor x) -> Tensor")
        ran = []

        def halve(x):
            ran.append(1)
            return x / 2

        library.impl("halve", halve, "CPU")
        library.impl("halve", lambda x: torch.empty_like(x), "Meta")
        yield torch.ops.funcaot_test_kept.halve, ran


def test_each_question_goes_on_from_the_last(halved):
    """A loop until something has converged computes each round once for all its questions."""
    halve, ran = halved

    def solve(x):
        for _ in range(ROUNDS):
            x = halve(x)
            if x.sum() < 1e-9:
                break
        return x

    compiled = funcaot.compile(solve, backend="eager")
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x), x / 2**ROUNDS, rtol=0, atol=0)
    # Once for the questions, and once in the call.
    assert len(ran) == 2 * ROUNDS
    torch.testing.assert_close(compiled(2 * x), 2 * x / 2**ROUNDS, rtol=0, atol=0)
    assert len(ran) == 3 * ROUNDS


def test_an_operator_fills_in_its_attributes(halved):
    """An operator that code holds gets its overload in the first call, which changes nothing."""
    halve, _ = halved
    compiled = funcaot.compile(lambda x: halve(x) + 1, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 1.5))
    assert funcaot.report(compiled).cache_misses == 1


def test_what_is_kept_has_a_bound(halved, monkeypatch):
    """Values that are too many are computed again, and are the same."""
    halve, ran = halved
    monkeypatch.setattr(kept, "_MOST", 5 * 3 * 4)

    def solve(x):
        first = x
        for count in range(ROUNDS):
            x = halve(x) + first * 0
            if (x.sum() + halve(first).sum() * 0) < 1e-9:
                return x * count
        return x

    compiled = funcaot.compile(solve, backend="eager")
    for x in (torch.ones(3), torch.tensor([1.0, 1e-9, 0])):
        torch.testing.assert_close(compiled(x), solve(x), rtol=0, atol=0)
    assert len(ran) > 4 * ROUNDS


def test_draws_between_questions():
    """The numbers that a capture sees are those that the call draws."""

    def walk(x):
        steps = 0
        for _ in range(6):
            noise = torch.rand(())
            x = x + noise
            if noise > 0.5:
                steps += 1
            if torch.nn.functional.dropout(x).sum() > 4:
                steps += 10
        return x * steps, noise

    compiled = funcaot.compile(walk, backend="eager")
    found = set()
    for seed in range(4):
        torch.manual_seed(seed)
        expected = walk(torch.ones(3))
        after = torch.rand(())
        torch.manual_seed(seed)
        for ours, theirs in zip(compiled(torch.ones(3)), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert torch.rand(()) == after
        found.add(expected[0].sum().item() / expected[1].item())
    assert funcaot.report(compiled).cache_misses <= len(found)
