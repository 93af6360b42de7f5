"""Jagged tensors that are made of values that others see: views, as in eager."""

import pytest
import torch

import funcaot
from tests.aot.subclasses.jagged.test_jagged import alike
from tests.aot.subclasses.kinds import made
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
jagged = torch.nested.nested_tensor_from_jagged


def of_result(values, offsets):
    doubled = values * 2
    return jagged(doubled, offsets), doubled


def without_grad(values, offsets):
    with torch.no_grad():
        return jagged(values, offsets)


def written(values, offsets):
    result = jagged(values, offsets)
    result.mul_(3)
    return result


def of_rows(values, offsets):
    doubled = values * 2
    return doubled, jagged(doubled[:6], offsets)


def of_argument_and_result(values, offsets):
    result = jagged(values, offsets)
    return result, result * 2, values.sum(0)


PROGRAMS = {
    "of an argument": jagged,
    "of rows of an argument": lambda values, offsets: jagged(values[:6], offsets),
    "with lengths": lambda values, offsets: jagged(values, offsets, torch.tensor([1, 2, 1])),
    "with known lengths": lambda values, offsets: jagged(
        values, offsets, min_seqlen=1, max_seqlen=3
    ),
    "transposed": lambda values, offsets: jagged(values, offsets).transpose(1, 2),
    "heads": lambda values, offsets: jagged(values, offsets).unflatten(-1, (2, 2)),
    "of other offsets": lambda values, offsets: jagged(values, offsets.clone()),
    "of a result": of_result,
    "of rows of a result": of_rows,
    "and more": of_argument_and_result,
    "two": lambda values, offsets: (jagged(values, offsets), jagged(values, offsets)),
    "written inside": written,
    "without grad": without_grad,
}


def outcome(function, seed, history, grad_mode):
    """Results, whose views they are, what a write to each does, and gradients after that."""
    leaf = made(seed, 6, 4, grad=history)
    values, offsets = leaf * 1, torch.tensor([0, 2, 5, 6])
    with torch.set_grad_enabled(grad_mode):
        results = function(values, offsets)
    results = results if isinstance(results, tuple) else (results,)
    plain = [each for each in results if not each.is_nested]
    shown = [values, *results, *(each.values() for each in results if each.is_nested)]
    found = [[each._base is one for one in (values, *plain)] for each in results]
    found += [[each.offsets() is offsets for each in results if each.is_nested]]
    for result in results:
        before = [each.clone() for each in shown]
        try:
            result.mul_(2)
        except RuntimeError as error:
            found.append(str(error)[:40])
        found += [before, values._version, result._version]
    found.append([each.requires_grad for each in (values, *results)])
    try:
        outputs = [values, *results]
        losses = [(each.values() if each.is_nested else each).sin().sum() for each in outputs]
        total = torch.stack([loss for loss in losses if loss.requires_grad]).sum()
        found += torch.autograd.grad(total, leaf)
    except RuntimeError as error:
        found.append(str(error)[:40])
    return found


def compare(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, torch.Tensor):
        alike(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("grad_mode", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("history", [True, False], ids=["history", "plain"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program, history, grad_mode):
    if program == "written inside" and history and not grad_mode:
        pytest.skip("autograd forbids to use the result")
    function = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for seed in range(2):
        wanted = outcome(function, seed, history, grad_mode)
        compare(outcome(compiled, seed, history, grad_mode), wanted)


def test_pieces_of_a_split_go_together():
    """Torch's formula for a jagged split needs the gradients of all pieces."""

    def function(x):
        return (*x.split(2, -1), *(x * 2).split(1, -1))

    def gradient(f):
        x = torch.nested.nested_tensor(
            [torch.arange(8.0).view(2, 4), torch.ones(1, 4)],
            layout=torch.jagged,
            requires_grad=True,
        )
        pieces = f(x)
        losses = [piece.values().sin().sum() for piece in pieces]
        return torch.autograd.grad(losses, x)[0].values(), [piece.output_nr for piece in pieces]

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(gradient(compiled), gradient(function))


AROUND_VALUES = {
    "rows": lambda values: values[:],
    "columns": lambda values: values[:, 1:3],
    "one row for all": lambda values: values[:1].expand(values.shape[0], -1),
    "turned twice": lambda values: values.t().t(),
}
OFFSETS = {
    "its own": lambda x, offsets: x.offsets(),
    "an argument": lambda x, offsets: offsets,
    "computed": lambda x, offsets: offsets + 0,
    "a view": lambda x, offsets: offsets[:],
}


SITUATIONS = [(view, which, COMPILER) for view in AROUND_VALUES for which in OFFSETS]
SITUATIONS.append(("rows", "its own", "inductor"))


@pytest.mark.parametrize(("view", "which", "backend"), SITUATIONS)
def test_around_a_view_of_the_values_of_an_argument(view, which, backend):
    """What is made again as a view of the argument has the offsets of its call."""

    def function(x, offsets):
        return jagged(AROUND_VALUES[view](x.values()), OFFSETS[which](x, offsets))

    def outcome(each, call):
        leaf, offsets = made(call, 6 + call, 4, grad=call % 2 == 0), torch.tensor([0, 2, 6 + call])
        x = jagged(leaf * 1, offsets)
        result = each(x, offsets + 0)
        found = [result, result.offsets(), result._base is x, result.requires_grad]
        found.append(result.offsets() is offsets)
        if leaf.requires_grad:
            found += torch.autograd.grad(result.values().sin().sum(), leaf)
        elif view != "one row for all":
            with torch.no_grad():
                result.mul_(3)
            found += [x.values().clone(), x._version]
        return found

    compiled = funcaot.compile(function, backend=backend)
    for call in range(4):
        compare(outcome(compiled, call), outcome(function, call))
