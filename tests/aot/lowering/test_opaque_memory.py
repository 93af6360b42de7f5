"""Functions on real values whose results, or what they keep, share memory.

The oracle is the Function in eager mode. Autograd looks at versions of saved tensors and not at
those of attributes; a compiled Function refuses what eager would compute of changed ones.
"""

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

KEPT = {
    "input": lambda x, y: x,
    "detached input": lambda x, y: x.detach(),
    "part of the input": lambda x, y: x.detach()[1:],
    "view of the input": lambda x, y: x[1:],
    "input's array": lambda x, y: torch.from_numpy(x.detach().numpy()[::2]),
    "output": lambda x, y: y,
    "detached output": lambda x, y: y.detach(),
    "part of the output": lambda x, y: y.detach()[1:],
    "neither": lambda x, y: y * 2,
}
WRITES = {
    "none": lambda x, y: None,
    "to the input": lambda x, y: x.mul_(3),
    "to the output": lambda x, y: y.mul_(3),
    "to the detached output": lambda x, y: y.detach().mul_(3),
}


def made(kept, *, saves):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.from_numpy(np.exp(x.detach().numpy()))
            if saves:
                ctx.save_for_backward(kept(x, y))
            else:
                ctx.kept = kept(x, y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            (tensor,) = ctx.saved_tensors if saves else (ctx.kept,)
            return gradient * tensor.sum()

    return lambda x: Exp.apply(x)


def outcomes(function, write):
    found = []
    for start in (1.0, 2.0, 3.0):
        x = torch.arange(start, start + 4).requires_grad_()
        y = function(x)
        with torch.no_grad():
            write(x, y)
        try:
            gradient = torch.autograd.grad(y.sum(), x)[0].tolist()
            found.append([float(f"{number:.5g}") for number in gradient])
        except RuntimeError as error:
            found.append(None if "modified" in str(error) else str(error))
    return found


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("saves", [False, True], ids=["attribute", "saved"])
def test_what_is_kept_is_seen_to_change(saves, kept, write):
    function = made(kept, saves=saves)
    expected = outcomes(function, write)
    found = outcomes(funcaot.compile(function, backend="eager"), write)
    assert found == expected or (not saves and found == [None] * 3 and write is not WRITES["none"])


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_on_inductor(kept):
    function = made(kept, saves=False)
    for write in WRITES.values():
        found = outcomes(funcaot.compile(function), write)
        assert found in (outcomes(function, write), [None] * 3)
    assert outcomes(funcaot.compile(function), WRITES["none"]) == outcomes(function, WRITES["none"])


@pytest.mark.parametrize("part", [slice(None), slice(1, None), slice(None, -1)], ids=str)
def test_an_array_in_the_memory_of_a_result(part):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = np.exp(x.detach().numpy())
            return torch.from_numpy(ctx.kept[part])

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.from_numpy(ctx.kept)

    compiled = funcaot.compile(lambda x: Exp.apply(x), backend="eager")
    with pytest.raises(UnsupportedError, match="array on ctx that shares memory"):
        compiled(torch.rand(3, requires_grad=True))


RESULTS = {
    "input": lambda x: torch.from_numpy(x),
    "part of the input": lambda x: torch.from_numpy(x[1:]),
    "two in one memory": lambda x: tuple(map(torch.from_numpy, [y := x * 2, y[1:]])),
    "one and its part": lambda x: (y := torch.from_numpy(x * 2), y[1:]),
    "one and itself, detached": lambda x: (y := torch.from_numpy(x * 2), y.detach()),
}


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_results_in_one_memory_that_the_function_writes_to(result, requires_grad, backend):
    class Returns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return result(x.detach().numpy())

        @staticmethod
        def backward(ctx, *gradients):
            return torch.zeros(4)

    def function(x, writes):
        made = Returns.apply(x)
        first, last = made if isinstance(made, tuple) else (x, made)
        if writes:
            with torch.no_grad():
                first.mul_(3)
        return last.detach() * 2

    compiled = funcaot.compile(function, backend=backend)
    for start in range(3):
        x = torch.arange(start, start + 4.0).requires_grad_(requires_grad)
        assert compiled(x, False).tolist() == function(x, False).tolist()
        with pytest.raises(UnsupportedError, match="that memory is written to and then used"):
            compiled(x, True)
