"""Random index expressions, right ones and wrong ones: values, strides and errors of eager."""

import random

import pytest
import torch

import funcaot

SHAPES = [(4,), (3, 4), (2, 3, 4), (3, 3), (4, 0, 2), (2, 3, 2, 3), (1, 4), ()]
KINDS = ["number", "slice", "none", "all", "indexes", "mask", "list", "bytes", "truth", "empty"]


class Expression:
    """Parts of an index as text, and the tensors that it names."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        shape = self.draw.choice(SHAPES)
        self.tensors = [torch.arange(float(torch.Size(shape).numel())).reshape(shape)]
        parts = self.draw.randint(1, max(1, min(3, len(shape))))
        self.text = ", ".join(
            self.part(shape[dim] if dim < len(shape) else 1) for dim in range(parts)
        )

    def named(self, tensor):
        self.tensors.append(tensor)
        return f"a{len(self.tensors) - 1}"

    def some(self, size, *shape):
        if not size:
            return torch.zeros(shape, dtype=torch.int64)
        return torch.randint(-size, size, shape, generator=self.generator)

    def part(self, size):
        draw, kind = self.draw, self.draw.choice(KINDS)
        if kind == "number":
            return str(draw.randint(-size, max(size - 1, 0)))
        if kind == "slice":
            return f"{draw.choice(['', '1', '-1'])}:{draw.choice(['', '2', '-1'])}"
        if kind in ("none", "all"):
            return {"none": "None", "all": "..."}[kind]
        if kind == "truth":
            return str([draw.random() < 0.5 for _ in range(size + draw.choice([0, 0, 1]))])
        if kind == "list":
            count = draw.randint(1, 3) if size else 0
            return str([draw.randint(-size, size - 1) for _ in range(count)])
        if kind == "empty":
            return self.named(torch.zeros(0, dtype=torch.int64))
        if kind == "indexes":
            return self.named(self.some(size, *draw.choice([(), (2,), (3,), (2, 1)])))
        length = max(0, size + draw.choice([0, 0, 0, -1, 1]))
        mask = torch.rand(length, generator=self.generator) > 0.5
        return self.named(mask if kind == "mask" else mask.to(torch.uint8))

    def function(self):
        way = self.draw.choice(["read", "written", "number", "added", "gradient"])
        if way in ("written", "added"):
            shape = self.draw.choice([(), (1,), (2,), (3,), (2, 1), (3, 4)])
            value = self.named(torch.randn(shape, generator=self.generator))
        lines = {
            "read": lambda: f"return a0[{self.text}]",
            "gradient": lambda: f"return grad(lambda a0: a0[{self.text}].square().sum())(a0)",
            "number": lambda: f"x = a0.clone(); x[{self.text}] = 7; return x",
            "written": lambda: f"x = a0.clone(); x[{self.text}] = {value}; return x",
            "added": lambda: f"x = a0.clone(); x[{self.text}] += {value}; return x",
        }
        names = ", ".join(f"a{i}" for i in range(len(self.tensors)))
        code = f"def indexed({names}):\n    {lines[way]()}"
        space = {"torch": torch, "grad": torch.func.grad}
        exec(code, space)
        return space["indexed"], code


def outcome(function, tensors):
    try:
        return function(*(tensor.clone() for tensor in tensors))
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "seeds",
    [
        range(20),
        pytest.param(range(20, 50), marks=pytest.mark.slow),
        pytest.param(range(50, 400), marks=pytest.mark.long),
    ],
    ids=["few", "some", "many"],
)
def test_as_in_eager(seeds):
    for seed in seeds:
        expression = Expression(seed)
        function, code = expression.function()
        expected = outcome(function, expression.tensors)
        ours = outcome(funcaot.compile(function, backend="eager"), expression.tensors)
        if isinstance(expected, type):
            assert ours is expected, (seed, code, ours)
        else:
            assert isinstance(ours, torch.Tensor), (seed, code, ours)
            assert torch.equal(ours, expected) and ours.stride() == expected.stride(), (seed, code)
