"""Functions of torch that tell a mode less than they were given, and what they do when compiled."""

import ast
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import funcaot
from funcaot._torch.calls.lost_arguments import LOST

ASKS = "handle_torch_function"
# Arguments that the function has put under other names by then.
PUT_ELSEWHERE = {"backward": {"grad_variables"}, "grad": {"inputs"}}


def not_handed_on(function):
    """Named arguments of a function that aren't in its call of `handle_torch_function`."""
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or ASKS not in ast.unparse(call.func):
            continue
        given = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        yield from {argument.arg for argument in named} - given - {"self"}


def lost_by_torch():
    root = Path(torch.__file__).parent
    files = ["_tensor.py", "functional.py", "nn/functional.py", "autograd/__init__.py"]
    for file in files:
        for function in ast.walk(ast.parse((root / file).read_text())):
            if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
                continue
            lost = set(not_handed_on(function)) - PUT_ELSEWHERE.get(function.name, set())
            if lost:
                yield function.name, lost


def test_all_of_them_are_known():
    known = {function.__name__: set(lost) for function, lost in LOST.items()}
    for name, lost in lost_by_torch():
        assert lost <= known[name]


def weighted(x, y, w):
    return F.l1_loss(x, y, weight=w)


def weighted_by_position(x, y, w):
    return F.l1_loss(x, y, None, None, "sum", w).sin()


def unique_order(x, y, w):
    return x * len(x.reshape(1, 3).dim_order(ambiguity_check=True))


def any_order(x, y, w):
    return x * len(x.reshape(1, 3).dim_order())


def written_to_out(x, y, w):
    out = torch.empty(1, 1)
    torch.chain_matmul(x[None], y[:, None], out=out)
    return out * w


def outcome(function, tensors):
    w = tensors[-1].detach().requires_grad_()
    try:
        result = function(*tensors[:-1], w)
    except RuntimeError as error:
        return str(error)
    gradient = torch.autograd.grad(result.sum(), w)[0] if result.requires_grad else None
    return result.tolist(), None if gradient is None else gradient.tolist()


@pytest.mark.filterwarnings("ignore:torch.chain_matmul")
@pytest.mark.parametrize(
    "function",
    [weighted, weighted_by_position, unique_order, any_order, written_to_out],
    ids=lambda function: function.__name__,
)
def test_as_in_eager(function):
    compiled = funcaot.compile(function, backend="eager")
    for scale in (1, 1, 2):
        tensors = [torch.tensor([1.0, -2.0, 3.0]) * scale + i for i in range(3)]
        assert outcome(compiled, tensors) == outcome(function, tensors)


def test_a_weight_that_is_closed_over():
    weight = torch.tensor([1.0, 2.0, 3.0])

    def function(x, y):
        return F.l1_loss(x, y, weight=weight)

    compiled = funcaot.compile(function, backend="eager")
    x, y = torch.tensor([1.0, 5.0, 2.0]), torch.zeros(3)
    for _ in range(3):
        assert compiled(x, y) == function(x, y)
        weight.add_(1)
