"""Lists of whole numbers that a function reads off tensors stay open, and so do 0 and 1 there.

The oracle is the function itself in eager mode.
"""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import RecompileWarning


def from_tolist(lengths):
    return lengths.tolist()


def from_map(lengths):
    return list(map(int, lengths))


def from_a_comprehension(lengths):
    return [int(each) for each in lengths]


def from_rows(lengths):
    return [row[0] for row in lengths.reshape(-1, 1).tolist()]


def from_a_generator(lengths):
    return [each + 0 for each in map(int, lengths)]


def by_unpacking(lengths):
    first, second, third = lengths.tolist()
    return [first, second, third]


def slices(x, numbers):
    start, found = 0, []
    for number in numbers:
        found.append(x[start : start + number].sin().sum())
        start += number
    return found


def split(x, numbers):
    return [part.cos().sum() for part in torch.split(x[: sum(numbers)], numbers)]


def shapes(x, numbers):
    return x[: numbers[0] * numbers[1]].reshape(numbers[0], numbers[1]).sin().sum()


def arithmetic(x, numbers):
    first, second, third = numbers
    return x * (first * second * third) / second + first * 0.5 - 1 / third + second / 3


def indices(x, numbers):
    return x[numbers[0]] + x.reshape(2, -1)[1, numbers[1]] + x[numbers].sum()


def tensor_of_them(x, numbers):
    mask = torch.arange(len(x)) < torch.tensor([1, *numbers])[:, None]
    return (mask * x).sum()


def returned_and_changed(x, numbers):
    numbers.append(3)
    numbers[0] += 1
    return x * numbers[0], numbers


SOURCES = [from_tolist, from_map, from_a_comprehension, from_rows, from_a_generator, by_unpacking]
USES = [slices, split, shapes, arithmetic, indices, tensor_of_them, returned_and_changed]
LENGTHS = [[2, 4, 3], [3, 5, 2], [4, 3, 5], [6, 2, 4], [5, 5, 3]]


def check(source, use, lengths, backend="eager"):
    def function(x, lengths):
        return use(x, source(lengths))

    compiled = funcaot.compile(function, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for numbers in lengths:
            x = torch.rand(40, dtype=torch.float64)
            given = torch.tensor(numbers)
            found, expected = compiled(x, given), function(x, given)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            assert str(type(found)) == str(type(expected))
    return len(compiled.entries)


@pytest.mark.parametrize("source", SOURCES)
def test_two_programs_serve_all_lists(source):
    assert check(source, slices, LENGTHS) == 2


@pytest.mark.parametrize("use", USES)
def test_two_programs_serve_all_uses(use):
    assert check(from_tolist, use, LENGTHS) == 2


@pytest.mark.slow
@pytest.mark.parametrize("use", [slices, arithmetic, indices])
def test_two_programs_serve_all_uses_on_inductor(use):
    assert check(from_tolist, use, LENGTHS, "inductor") == 2


def compared(x, numbers):
    return x * numbers[1] if numbers[0] < 10 else x


@pytest.mark.parametrize("use", [compared, returned_and_changed])
def test_zero_and_one_are_numbers_like_others(use):
    lengths = [[2, 4, 3], [0, 5, 1], [1, 0, 5], [3, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert check(from_tolist, use, lengths) == 2
    assert check(from_map, use, lengths) == 2


@pytest.mark.parametrize("use", [slices, split, tensor_of_them, indices])
def test_what_treats_zero_and_one_differently_is_right_for_them(use):
    lengths = [[2, 4, 3], [0, 5, 1], [1, 0, 5], [3, 1, 0], [7, 6, 5], [0, 0, 0], [1, 1, 1]]
    check(from_tolist, use, lengths)


def test_what_was_open_for_one_length_is_open_for_others():
    lengths = [[2, 4, 3], [3, 5, 2], [4, 3], [2, 5], [3, 3, 3, 4], [5, 6, 2, 2]]
    assert check(from_tolist, slices, lengths) == 4


def test_long_lists_have_a_program_for_each_value():
    lengths = [[number] * 33 for number in (1, 2, 3, 1)]
    assert check(from_tolist, lambda x, numbers: x * sum(numbers), lengths) == 3


def test_elements_are_those_of_the_moment():
    def function(x, lengths):
        lengths = lengths.clone()
        first = lengths[0].item()
        lengths.add_(1)
        second, third = lengths[1].item(), lengths[2].item()
        return x[:first].sum() * second + third * lengths[0].item()

    compiled = funcaot.compile(function, backend="eager")
    for numbers in LENGTHS:
        x, given = torch.rand(40), torch.tensor(numbers)
        torch.testing.assert_close(compiled(x, given), function(x, given))
    assert len(compiled.entries) == 2


def test_numbers_that_are_negative_are_right():
    check(from_tolist, compared, [[2, 4, 3], [-1, 4, 3], [-2, 5, 1], [3, -3, 1]])


def test_a_float_of_a_number_is_right_where_its_value_is_needed():
    def function(x, lengths):
        share = lengths.tolist()[0] / 4
        return x * share, round(share, 1)

    compiled = funcaot.compile(function, backend="eager")
    for number in (3, 5, 7, 9, 7, 5):
        x, given = torch.rand(3), torch.tensor([number, 2])
        torch.testing.assert_close(compiled(x, given), function(x, given))


def after_a_draw(x, lengths):
    x = torch.nn.functional.dropout(x, 0.5)
    numbers = lengths.tolist()
    return [part.sum() for part in torch.split(x[: sum(numbers)], numbers)], torch.rand(2)


def of_what_is_drawn(x, lengths):
    chosen = (torch.rand(8) > 0.5).nonzero()
    return x[: lengths.tolist()[0]].sum(), chosen, torch.rand(2)


def after_a_branch_on_a_draw(x, lengths):
    wanted = lengths if torch.rand(()) > 0.5 else lengths + 1
    return x[: wanted.tolist()[0]].sum(), torch.rand(2)


@pytest.mark.parametrize("function", [after_a_draw, of_what_is_drawn, after_a_branch_on_a_draw])
def test_random_numbers_are_drawn_once(function):
    compiled = funcaot.compile(function, backend="eager")
    for seed, numbers in enumerate(LENGTHS):
        given = torch.rand(40), torch.tensor(numbers)
        torch.manual_seed(seed)
        found, state = compiled(*given), torch.get_rng_state()
        torch.manual_seed(seed)
        torch.testing.assert_close(found, function(*given))
        assert torch.equal(state, torch.get_rng_state())
    if function is after_a_draw:
        assert len(compiled.entries) == 2
