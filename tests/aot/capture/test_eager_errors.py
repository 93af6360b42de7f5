"""An op that refuses its arguments in a capture says what it says in eager."""

import logging

import pytest
import torch
from torch.nn import functional

import funcaot
from funcaot.errors import CaptureWarning, FuncaotError

MISTAKES = {
    "mm": lambda x: x @ torch.ones(7, 2),
    "mm of dtypes": lambda x: x @ torch.ones(4, 2, dtype=torch.float64),
    "bmm": lambda x: torch.bmm(x, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, torch.ones(5, 5)),
    "linear": lambda x: functional.linear(x, torch.ones(3, 9)),
    "conv2d": lambda x: functional.conv2d(x, torch.ones(3, 9, 3, 3)),
    "cross_entropy": lambda x: functional.cross_entropy(x, torch.zeros(7, dtype=torch.long)),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x.cos(), eps=-0.5),
    "embedding": lambda x: functional.embedding(x, torch.ones(3, 3)),
    "layer_norm": lambda x: functional.layer_norm(x, (9,)),
    "add": lambda x: x + torch.ones(5),
    "in place": lambda x: x.clone().add_(torch.ones(5, 3, 4)),
    "cat": lambda x: torch.cat([x, torch.ones(2, 2)]),
    "stack": lambda x: torch.stack([x, x[0]]),
    "gather": lambda x: x.gather(1, torch.zeros(9, 9, dtype=torch.long)),
    "scatter": lambda x: torch.zeros(2).scatter(0, torch.tensor([0, 1, 2]), x),
    "view": lambda x: x.view(7),
    "view of a transpose": lambda x: x.t().view(-1),
    "reshape": lambda x: x.reshape(5, 5),
    "expand": lambda x: x.expand(7, 9),
    "index": lambda x: x[5],
    "too many indices": lambda x: x[0, 0, 0],
    "select": lambda x: x.select(3, 0),
    "transpose": lambda x: x.transpose(0, 5),
    "split": lambda x: x.split([1, 1]),
    "unflatten": lambda x: x.unflatten(0, (2, 2)),
    "cholesky": torch.linalg.cholesky,
    "solve": lambda x: torch.linalg.solve(x, x),
    "a keyword": lambda x: torch.addmm(input=x, mat1=x, mat2=x),
    "an example of a vmap": lambda x: torch.func.vmap(lambda row: row.view(3))(x),
    "a method": lambda x: torch.nn.Linear(7, 2)(x),
}


def error_of(function, *args):
    with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)) as found:
        function(*args)
    return type(found.value), str(found.value)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_messages_are_those_of_eager(mistake, dynamic, caplog):
    function = MISTAKES[mistake]
    compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
    x = torch.randn(3, 4, requires_grad=True)
    with caplog.at_level(logging.WARNING):
        assert error_of(compiled, x) == error_of(function, x)
    assert not caplog.records


def test_the_line_is_the_users():
    def function(x):
        return x + torch.ones(5)

    with pytest.raises(RuntimeError, match="must match the size") as found:
        funcaot.compile(function, backend="eager")(torch.ones(3))
    assert function.__code__.co_name in [entry.name for entry in found.traceback]
    assert found.value.__cause__ is None


def test_what_would_take_much_memory_isnt_tried():
    compiled = funcaot.compile(lambda x: x.expand(1 << 20, 1 << 20).exp() @ x, backend="eager")
    with pytest.raises(RuntimeError, match="same reduction dim"):
        compiled.warm_up(torch.ones(1, 1 << 20))  # The call itself would, as it does in eager.


def test_an_error_of_made_up_values_isnt_shown(monkeypatch):
    """A symbolic op's own mistake stays what is told, and the call is made."""
    monkeypatch.setattr(torch._refs, "_maybe_broadcast", lambda *a, **k: _raise())
    compiled = funcaot.compile(lambda x: torch.linalg.inv(x + 0), backend="eager")
    with pytest.warns(CaptureWarning, match="AssertionError .* symbolic"):
        assert torch.equal(compiled(torch.eye(3)), torch.eye(3))
    with pytest.raises(AssertionError, match="symbolic"):
        compiled.warm_up(torch.eye(3))


def _raise():
    raise AssertionError("symbolic")


def test_the_generator_is_where_eager_leaves_it():
    def function(x):
        return functional.dropout(x) @ torch.ones(9, 9)

    compiled = funcaot.compile(function, backend="eager")
    states = []
    for call in (compiled.warm_up, function, compiled):
        torch.manual_seed(0)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            call(torch.ones(3, 4))
        states.append(torch.get_rng_state())
    torch.manual_seed(0)
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], states[2])


def test_refusals_of_a_capture_stay():
    compiled = funcaot.compile(lambda x: x.numpy().sum(), backend="eager")
    with pytest.raises(FuncaotError):
        compiled(torch.ones(3))
