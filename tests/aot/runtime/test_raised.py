"""What a function did before it raised is what eager leaves, in every call; then it goes on."""

import contextlib
import types

import pytest
import torch
from torch._subclasses.functional_tensor import FunctionalTensor

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError


class Stop(Exception):
    """The function's own."""


def write(x, s):
    x.mul_(2)


def write_recorded(x, s):
    (x * 1).mul_(2)
    s.buffer.add_(x.sum().detach())


def count(x, s):
    s.calls += 1


def count_in_list(x, s):
    s.log.append(s.calls)


def store(x, s):
    s.hidden = x * 2


def store_in_dict(x, s):
    s.found["new"] = x.sum()
    del s.found["old"]


def assign_gradient(x, s):
    s.buffer.grad = torch.ones_like(s.buffer)


def accumulate_gradient(x, s):
    (s.weight * x.detach()).sum().backward()


def write_in_no_grad(x, s):
    with torch.no_grad():
        s.weight.mul_(2)


def draw(x, s):
    s.buffer.add_(torch.rand(1))


def set_attribute(x, s):
    x.mark = 3


def require_grad(x, s):
    s.buffer.requires_grad_()


def reshape(x, s):
    s.buffer.unsqueeze_(0)


def switch_grad_mode(x, s):
    torch.set_grad_enabled(False)


def catch_own(x, s):
    with contextlib.suppress(Stop):
        s.buffer.add_(1)
        raise Stop
    s.buffer.mul_(3)


def write_sized(x, s):
    s.buffer.add_(x.nonzero().sum() + x[x > 0].numel())


BEFORE = [
    write,
    write_recorded,
    count,
    count_in_list,
    store,
    store_in_dict,
    assign_gradient,
    accumulate_gradient,
    write_in_no_grad,
    draw,
    set_attribute,
    require_grad,
    reshape,
    switch_grad_mode,
    catch_own,
    write_sized,
]


def by_raising(x):
    raise Stop("as told")


def by_a_product(x):
    return torch.ones(3) @ torch.ones(4)


def by_a_view(x):
    return x.view(77)


def by_an_assertion(x):
    if x.shape[0] < 100:
        raise AssertionError("too short")


def by_a_value(x):
    if x.sum() > 0:
        raise Stop("positive")


ENDS = [by_raising, by_a_product, by_a_view, by_an_assertion, by_a_value]


def tensors(value):
    if isinstance(value, torch.Tensor):
        gradient = value.grad if value.is_leaf else None
        looks = value.shape, value.requires_grad, value.is_leaf, value._version
        return looks, value.tolist(), None if gradient is None else gradient.tolist()
    if isinstance(value, dict):
        return {name: tensors(item) for name, item in value.items()}
    return value


def story(function, make, sizes):
    """What calls leave behind, one after the other."""
    torch.manual_seed(0)
    state = types.SimpleNamespace(
        calls=0,
        log=[],
        found={"old": 1},
        buffer=torch.zeros(2),
        weight=torch.ones(1, requires_grad=True),
    )
    told = []
    for size in sizes:
        x = make(size)
        try:
            told.append(tensors(function(x, state)))
        except UnsupportedError:
            raise
        except (Stop, RuntimeError, AssertionError, KeyError) as error:
            told.append((type(error), str(error).split("\n")[0]))
        told.append((tensors(x), getattr(x, "mark", 0), torch.is_grad_enabled()))
        torch.set_grad_enabled(True)
        told.append((tensors(vars(state)), torch.rand(1).item()))
    return told


MAKERS = {
    "plain": lambda size: torch.ones(size),
    "not a leaf": lambda size: torch.ones(size, requires_grad=True) * 1,
    "a view": lambda size: torch.ones(size + 2)[1:-1],
}


# The kind of the argument doesn't matter for how it ends.
WAYS = [(by_raising, kind) for kind in MAKERS] + [(end, "plain") for end in ENDS[1:]]


@pytest.mark.parametrize(("end", "kind"), WAYS)
@pytest.mark.parametrize("before", BEFORE)
def test_what_was_done_before_stays_done(before, end, kind):
    def function(x, s):
        before(x, s)
        end(x)

    sizes = (3, 4, 5, 3) if end is by_raising else (3, 3)
    try:
        found = story(funcaot.compile(function, backend="eager"), MAKERS[kind], sizes)
    except UnsupportedError:
        assert before in (require_grad, reshape, switch_grad_mode, write_sized)
        return
    assert found == story(function, MAKERS[kind], sizes)


@pytest.mark.parametrize("fails", [(False, True, False), (True, False, True)])
@pytest.mark.parametrize("before", BEFORE)
def test_calls_that_raise_between_calls_that_do_not(before, fails):
    def make_function():
        left = iter(fails)

        def function(x, s, *, fail):
            before(x, s)
            if fail:
                raise Stop
            return x * 2 + s.buffer.sum()

        def call(run):
            return lambda x, s: run(x, s, fail=next(left))

        return function, call

    try:
        function, call = make_function()
        found = story(call(funcaot.compile(function, backend="eager")), MAKERS["plain"], (3, 3, 3))
    except UnsupportedError:
        assert before in (require_grad, reshape, switch_grad_mode, write_sized, assign_gradient)
        return
    function, call = make_function()
    assert found == story(call(function), MAKERS["plain"], (3, 3, 3))


def test_under_transforms():
    def function(x, s):
        s.calls += 1
        raise Stop("as told")

    compiled, state = funcaot.compile(function, backend="eager"), types.SimpleNamespace(calls=0)
    for transform in (torch.func.grad, torch.func.vmap):
        with pytest.raises(Stop, match="as told"):
            transform(lambda x: compiled(x, state))(torch.ones(3))
        with pytest.raises(Stop, match="as told"):
            funcaot.compile(transform(lambda x: function(x, state)), backend="eager")(torch.ones(3))
    assert state.calls == 4


def test_an_error_of_the_capture_alone_is_told_and_the_call_made():
    def enlarge(x):
        if isinstance(x, FunctionalTensor) and not len(x):
            raise TypeError("nothing to enlarge")
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest-exact") + 1

    compiled, empty = funcaot.compile(enlarge, backend="eager"), torch.ones(0, 3, 4)
    with pytest.warns(CaptureWarning, match=r"enlarge raised TypeError while it was captured"):
        assert compiled(empty).shape == (0, 3, 8)
    full = torch.ones(2, 3, 4)
    assert torch.equal(compiled(full), enlarge(full))
    assert len(compiled.entries) == 1


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
def test_calls_that_raise_in_their_captures_alone_are_captured_more_and_more_rarely():
    runs = []

    def function(x, at):
        runs.append("capture" if isinstance(x, FunctionalTensor) else "call")
        if len(x) == 3 and isinstance(x, FunctionalTensor):
            raise TypeError("not of that")
        return x * at

    compiled = funcaot.compile(function, backend="eager")
    for at in range(100):
        assert compiled(torch.ones(3), at).tolist() == [at] * 3
    assert runs.count("capture") <= 8
    for at in range(200):
        assert compiled(torch.ones(4), at).tolist() == [at] * 4
    assert compiled.entries


def test_what_the_library_refuses_is_not_called():
    calls = []

    def function(x):
        calls.append(1)
        return x * x.numpy().sum()

    compiled = funcaot.compile(function, backend="eager")
    with pytest.raises(UnsupportedError):
        compiled(torch.ones(3))
    assert calls == []


def test_warming_up_does_nothing():
    state = types.SimpleNamespace(calls=0)

    def function(x):
        state.calls += 1
        raise Stop

    compiled = funcaot.compile(function, backend="eager")
    with pytest.raises(Stop):
        compiled.warm_up(torch.ones(3))
    assert state.calls == 0
