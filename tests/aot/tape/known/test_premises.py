"""Programs made for values: numbers that were read, shapes that depended on them."""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import RecompileWarning, UnsupportedError


def compiled(function):
    return funcaot.compile(function, backend="eager")


def branch(x):
    return x.sin() if x.sum() > 0 else x.cos() * x.shape[0]


def number(x):
    return x * int(x.sum())


def index(x):
    return (x[x > 0] ** 3).exp()


def count(x):
    return x * x.nonzero().shape[0]


def select(x):
    return torch.masked_select(x.sin(), x > 0).exp()


def write(x):
    y = x * 2
    if x.sum() > 0:
        y.mul_(3)
    y[y > 1] = 0.5
    return y


def split(x):
    return tuple(part * 2 for part in torch.tensor_split(x, (x > 0).sum().view(1)))


def start(x):
    return torch.narrow(x, 0, (x.sum() > 0).long(), 2).exp()


DIFFERENTIABLE = [branch, number, index, count, select, write, split, start]
INPUTS = [
    [1.0, 2.0, -1.0],
    [-1.0, -2.0, 1.0],
    [3.0, 2.0, 4.0],
    [1.0, 2.0, -1.0],
    [-3.0, -1.0, -1.0],
]


def orders(function, x):
    """Values and two orders of gradients."""
    x = x.clone().requires_grad_()
    output = function(x)
    outputs = output if isinstance(output, tuple) else (output,)
    scalar = sum(out.sin().sum() for out in outputs)
    (first,) = torch.autograd.grad(scalar, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x)
    return *(out.detach() for out in outputs), first.detach(), second


@pytest.mark.parametrize("function", DIFFERENTIABLE)
def test_every_call_computes_with_its_own_values(function):
    fast = compiled(function)
    for values in INPUTS:
        x = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(orders(fast, x), orders(function, x))


# Eager can't split a dual tensor by a tensor.
@pytest.mark.parametrize("function", [f for f in DIFFERENTIABLE if f is not split])
def test_forward_mode(function):
    fast = compiled(function)
    for values in INPUTS:
        x = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(
            torch.func.jvp(fast, (x,), (x.cos(),)), torch.func.jvp(function, (x,), (x.cos(),))
        )


RESULTS = [
    lambda x: x.tolist(),
    lambda x: x.sum().item(),
    lambda x: torch.equal(x, x.abs()),
    lambda x: torch.allclose(x, x.abs()),
    lambda x: torch.unique(x.sign(), return_counts=True),
    lambda x: torch.unique_consecutive(x.sign()),
    lambda x: torch.nonzero(x > 0),
    lambda x: torch.argwhere(x > 0),
    lambda x: torch.bincount(x.long().abs()),
    lambda x: torch.nn.functional.one_hot(x.long().abs()),
    lambda x: torch.repeat_interleave(x, x.long().abs()),
    lambda x: torch.linalg.lstsq(torch.diag(x), x[:, None]).solution,
    lambda x: bool(x.min() > 0),
]


@pytest.mark.parametrize("function", RESULTS)
def test_results_that_depend_on_values(function):
    fast = compiled(function)
    for values in INPUTS:
        x = torch.tensor(values)
        torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)


def test_forward_mode_of_an_op_with_integer_results():
    def solve(a, b):
        return tuple(torch.linalg.lstsq(a, b, driver="gelsd"))

    a = torch.eye(4, 3, dtype=torch.float64) + 0.1
    b = torch.linspace(0, 1, 8, dtype=torch.float64).view(4, 2)
    tangents = (a.sin(), b.cos())
    found, expected = (
        torch.func.jvp(function, (a, b), tangents) for function in (compiled(solve), solve)
    )
    torch.testing.assert_close(found, expected)


def test_one_program_for_each_answer():
    fast = compiled(branch)
    for values in INPUTS:
        fast(torch.tensor(values))
    assert len(fast.entries) == 2
    fast = compiled(index)
    for values in INPUTS:
        fast(torch.tensor(values))
    assert len(fast.entries) == 4  # 0 to 3 are left


def test_an_unused_read_is_looked_at_again():
    def constant(x):
        return 1 if x.sum() > 0 else 2

    fast = compiled(constant)
    assert [fast(torch.ones(2) * sign) for sign in (1, -1, 1, -1)] == [1, 2, 1, 2]


def test_a_call_that_leaves_a_program_has_done_nothing():
    def update(x):
        x.add_(1)
        noise = torch.rand(2)
        if x.sum() > 0:
            x.mul_(2)
        return x + noise, torch.rand(3)

    fast = compiled(update)
    for sign in (1.0, -2.0, 1.0, -2.0):
        results = []
        for function in (fast, update):
            x = torch.ones(3)[:2] * sign
            torch.manual_seed(3)
            results.append((function(x), x, torch.get_rng_state(), x._version))
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_branch_on_random_numbers():
    def flip(x):
        return (x + 1 if torch.rand(()) > 0.5 else x - 1), torch.rand(2)

    fast = compiled(flip)
    for seed in range(8):
        torch.manual_seed(seed)
        found = fast(torch.zeros(2))
        torch.manual_seed(seed)
        torch.testing.assert_close(found, flip(torch.zeros(2)), rtol=0, atol=0)


def test_requires_grad_set_inside_is_taken_back():
    def start(x):
        x.requires_grad_()
        return x * 2 if x.sum() > 0 else x * 3

    fast = compiled(start)
    for sign in (1.0, -1.0, 1.0):
        x = torch.ones(2) * sign
        fast(x).sum().backward()
        assert x.grad[0] == (2 if sign > 0 else 3)


def test_a_backward_that_branches_is_traced_for_its_values():
    def scaled(x, index):
        # The second derivative of this op branches on whether there are zeros.
        return torch.scatter_reduce(x, 0, index, x * 2, "prod")

    fast = compiled(scaled)
    index = torch.tensor([0, 0, 1])
    for values in ([1.0, 2.0, 3.0], [0.0, 2.0, 0.0], [1.0, 0.0, 3.0], [2.0, 2.0, 3.0]):
        x = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(
            orders(lambda x: fast(x, index), x), orders(lambda x: scaled(x, index), x)
        )


def test_vmap_over_what_is_not_read():
    def scale(x, y):
        return x * 2 if y.sum() > 0 else x * 3

    fast = compiled(scale)
    x = torch.ones(4, 3)
    for sign in (1.0, -1.0, 1.0):
        y = torch.ones(3) * sign
        mapped = [torch.vmap(function, (0, None))(x, y) for function in (fast, scale)]
        torch.testing.assert_close(*mapped)


def test_vmap_over_shapes_that_are_the_same_for_each_example():
    fast = compiled(lambda x: torch.masked_select(x, torch.tensor([True, False, True])) * 2)
    x = torch.arange(6.0).view(2, 3)
    torch.testing.assert_close(torch.vmap(fast)(x), x[:, [0, 2]] * 2)
    ragged = compiled(lambda x: x[x > 0] * 2)
    with pytest.raises(UnsupportedError, match="same for each example"):
        torch.vmap(ragged)(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))


def test_vmap_over_a_number_that_is_read_is_refused():
    with pytest.raises(UnsupportedError, match="Instead"):
        torch.vmap(compiled(branch))(torch.ones(2, 3))


def test_many_programs_for_values_warn_once():
    fast = compiled(lambda x: x * round(x.sum().item()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in range(8):
            fast(torch.ones(2) * value)
    with pytest.warns(RecompileWarning, match="item at test_premises.py"):
        fast(torch.ones(2) * 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fast(torch.ones(2) * 10)[0] == 200


def test_the_report_says_what_a_program_is_for():
    fast = compiled(branch)
    fast(torch.ones(3))
    assert "item at test_premises.py" in str(funcaot.report(fast))
    assert "is True" in str(funcaot.report(fast))


def test_it_can_be_switched_off():
    off = funcaot.config.patch(specialize_on_values=False)
    with off, pytest.raises(UnsupportedError, match="values"):
        compiled(index)(torch.ones(3))


@pytest.mark.slow
def test_between_parts_compiled_by_inductor():
    def function(x):
        y = (x * 2).sin()
        return y[y > 0].exp() * 3 if x.sum() > 0 else x.cos() * x.sum().item()

    fast = funcaot.compile(function)
    for values in ([1.0, 2.0, -1.0], [-1.0, -2.0, 1.0], [1.0, 2.0, -1.0]):
        results = []
        for candidate in (fast, function):
            x = torch.tensor(values, requires_grad=True)
            output = candidate(x)
            output.sum().backward()
            results.append((output.detach(), x.grad))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum().item(),
        lambda x: float((x > 0).double().mean()),
        lambda x: bool((x > 0).all()),
        lambda x: torch.allclose(x, x.abs()),
        lambda x: (x.sum().item(), [x.max().item()]),
        lambda x: x.tolist(),
    ],
)
def test_functions_that_return_nothing_but_numbers(function, backend):
    compiled = funcaot.compile(function, backend=backend)
    for requires_grad in (False, True):
        for value in (1.0, 1.0, -1.0, 1.0):
            x = torch.full((2,), value, requires_grad=requires_grad)
            assert compiled(x) == function(x)


@pytest.mark.parametrize("function", [branch, number])
def test_values_are_read_under_another_default_device(function):
    """What stands for the answer in a graph isn't made where the user makes tensors."""
    call = compiled(function)
    for value in (2.0, -1.0, 3.0):
        with torch.device("meta"):
            x = torch.full((3,), value, device="cpu")
            found, wanted = call(x), function(x)
        assert torch.equal(found, wanted)
    assert len(call.entries) == (2 if function is branch else 3)
