"""Gradients of any class: each is traced as it came, or refused with eager's error."""

import pytest
import torch

import funcaot
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, made, same, two


def chain(x):
    return x.sin().exp()


TANGENTS = {
    "plain": lambda: torch.full((3,), 2.0),
    "TwoTensor": lambda: two(5, 3, grad=False),
    "Factor": lambda: Factor(torch.full((3,), 2.0), 3),
    "nested": lambda: TwoTensor(two(5, 3, grad=False), two(6, 3, grad=False)),
    "other strides": lambda: two(5, 3, 2, grad=False)[:, 0],
    "expanded": lambda: TwoTensor(torch.ones(()).expand(3), torch.ones(()).expand(3)),
    "another dtype": lambda: TwoTensor(torch.ones(3).double(), torch.ones(3).double()),
    "quantized": lambda: Int8.of(torch.ones(3, 1)).reshape(3),
}
REFUSED = {
    "another shape": lambda: two(5, 4, grad=False),
    "a plain one of another shape": lambda: torch.ones(4),
}
INPUTS = {
    "plain": lambda: made(0, 3),
    "TwoTensor": lambda: two(0, 3),
    "Factor": lambda: Factor(made(0, 3, grad=False), 2).requires_grad_(),
}


def gradient(function, make, tangent):
    x = make()
    return torch.autograd.grad(function(x), x, tangent)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("tangent", TANGENTS)
def test_traced_as_it_came(tangent, kind):
    make, given = INPUTS[kind], TANGENTS[tangent]
    compiled = funcaot.compile(chain, backend="eager")
    for _ in range(2):
        same(gradient(compiled, make, given()), gradient(chain, make, given()))
    assert compiled.settings.statistics.backward_traces == 1


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("tangent", REFUSED)
def test_eagers_error(tangent, kind):
    messages = []
    for function in (chain, funcaot.compile(chain, backend="eager")):
        with pytest.raises(RuntimeError) as raised:
            gradient(function, INPUTS[kind], REFUSED[tangent]())
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_each_is_a_key_of_its_own():
    compiled = funcaot.compile(chain, backend="eager")
    kinds = ["plain", "TwoTensor", "plain", "Factor", "nested", "TwoTensor"]
    for kind in kinds:
        given = TANGENTS[kind]
        wanted = gradient(chain, INPUTS["TwoTensor"], given())
        same(gradient(compiled, INPUTS["TwoTensor"], given()), wanted)
    assert compiled.settings.statistics.backward_traces == 4
    assert len(compiled.entries) == 1


@pytest.mark.parametrize(
    "given",
    [
        (None, "plain", None),
        ("TwoTensor", None, None),
        ("plain", "plain", "TwoTensor"),
        (None, "TwoTensor", None),
    ],
    ids=str,
)
def test_where_there_is_none(given):
    def function(x, y):
        return x * 2, y.sin(), x * y

    def gradients(each):
        x, y = two(0, 3), made(1, 3)
        chosen = [(out, TANGENTS[k]()) for out, k in zip(each(x, y), given, strict=True) if k]
        outputs, tangents = zip(*chosen, strict=True)
        return torch.autograd.grad(outputs, [x, y], tangents, allow_unused=True)

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        same(gradients(compiled), gradients(function))
