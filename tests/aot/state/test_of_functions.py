"""What Functions count, and what their callers count, changes as often as in eager."""

import numpy as np
import pytest
import torch
from torch import nn

import funcaot
from funcaot.aot.closure import ran
from funcaot.aot.closure.alike import reached_by
from funcaot.aot.state.of_functions import watch_of
from funcaot.errors import UnsupportedError

OF_C = pytest.importorskip("scipy.stats._stats").von_mises_cdf
COUNTS = {}
SEEN = []


class Recorder:
    def __init__(self):
        self.calls = 0

    def note(self):
        self.calls += 1


RECORDER = Recorder()


def count(name):
    COUNTS[name] = COUNTS.get(name, 0) + 1


def in_dictionary():
    COUNTS["rule"] += 1


def in_list():
    SEEN.append("rule")


def by_method():
    RECORDER.note()


def by_attribute():
    RECORDER.calls += 1


def nothing():
    pass


CHANGES = [in_dictionary, in_list, by_method, by_attribute, nothing]


def function_of(change, place, style):
    """A Function whose rule at a place changes something."""
    here = {name: change if name == place else nothing for name in ("forward", "setup", "backward")}
    forward_too, setup_too, backward_too = here["forward"], here["setup"], here["backward"]

    def compute(x):
        if style in ("numpy", "both"):
            return torch.from_numpy(np.sin(x.detach().numpy()))
        return torch.sin(x)

    def finish(cotangent):
        return torch.from_numpy(cotangent.numpy()) if style == "both" else cotangent

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(x):
            forward_too()
            return compute(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            setup_too()
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, cotangent):
            backward_too()
            return 1.5 * finish(cotangent) * torch.cos(ctx.saved_tensors[0])

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            forward_too()
            setup_too()
            ctx.save_for_backward(x)
            return compute(x)

        @staticmethod
        def backward(ctx, cotangent):
            backward_too()
            return 1.5 * cotangent * torch.cos(ctx.saved_tensors[0])

    return Whole if style == "whole" else Split


def reset():
    COUNTS.clear()
    COUNTS.update(rule=0, caller=0)
    SEEN.clear()
    RECORDER.calls = 0


def now():
    return dict(COUNTS), list(SEEN), RECORDER.calls


def history(call, differentiates, *, compiled=None):
    reset()
    call = call if compiled is None else funcaot.compile(call, backend=compiled)
    found = []
    for size in (3, 3, 3, 3):
        x = torch.ones(size, requires_grad=differentiates != "no")
        if differentiates == "func":
            torch.func.grad(lambda x: call(x).sum())(x.detach())
        else:
            result = call(x)
            if differentiates == "outside":
                result.sum().backward()
        found.append(now())
    return found


class Caller(nn.Module):
    """Counts its calls in four ways, and calls a Function."""

    def __init__(self, function, inside):
        super().__init__()
        self.function, self.inside = function, inside
        self.calls = 0
        self.items = []

    def forward(self, x):
        self.calls += 1
        COUNTS["caller"] += 1
        self.items.append("called")
        y = self.function.apply(x * 2)
        if self.inside:
            y.sum().backward()
        return y


@pytest.mark.parametrize("differentiates", ["no", "outside", "inside", "func"])
@pytest.mark.parametrize("style", ["split", "whole", "numpy"])
@pytest.mark.parametrize("place", ["forward", "setup", "backward"])
@pytest.mark.parametrize("change", CHANGES)
def test_counts_are_those_of_eager(change, place, style, differentiates):
    if differentiates == "func" and style == "whole":
        pytest.skip("torch.func refuses a forward that takes ctx, in eager")
    if differentiates == "func" and place == "setup" and change is not nothing:
        pytest.skip("eager calls setup_context once for each level, too")
    function = function_of(change, place, style)
    callers = [Caller(function, differentiates == "inside") for _ in range(2)]
    wanted = history(callers[0], differentiates)
    found = history(callers[1], differentiates, compiled="eager")
    assert found == wanted
    assert (callers[1].calls, callers[1].items) == (callers[0].calls, callers[0].items)


def check_real_values(change, place, differentiates):
    """What rules on real values count is counted once in each call, and no reason to compile."""

    def call(x):
        y = function.apply(x * 2)
        if differentiates == "inside":
            y.sum().backward()
        return y

    function = function_of(change, place, "both")
    wanted = history(call, differentiates)
    compiled = funcaot.compile(call, backend="eager")
    assert history(compiled, differentiates) == wanted
    assert funcaot.report(compiled).cache_misses == 1


def test_counts_of_rules_on_real_values():
    check_real_values(by_attribute, "forward", "outside")
    check_real_values(by_attribute, "backward", "inside")


@pytest.mark.long
@pytest.mark.parametrize("differentiates", ["outside", "inside"])
@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("change", CHANGES)
def test_all_counts_of_rules_on_real_values(change, place, differentiates):
    check_real_values(change, place, differentiates)


def test_a_count_on_an_object_that_begins_with_its_class():
    """What isn't the object's own yet is read off its class; what is, isn't."""

    class Counted:
        calls = 0

    counted = [Counted()]
    counted[0].calls = 0

    def call(x):
        counted[0].calls += 1
        return x * 2

    compiled = funcaot.compile(call, backend="eager")
    compiled(torch.ones(3))
    assert counted[0].calls == 1
    for start in (0, 0, 5):
        Counted.calls, counted[0] = start, Counted()
        for calls in (1, 2):
            compiled(torch.ones(3))
            assert counted[0].calls == start + calls


@pytest.mark.parametrize("change", [in_dictionary, in_list])
@pytest.mark.parametrize("differentiates", ["no", "outside"])
def test_counts_on_inductor(change, differentiates):
    function = function_of(change, "forward", "split")
    wanted = history(Caller(function, inside=False), differentiates)
    assert history(Caller(function, inside=False), differentiates, compiled="inductor") == wanted


def test_a_function_that_stores_in_its_own_tensors_is_compiled():
    """A store is looked at, not taken for a change."""

    class Filling(torch.autograd.Function):
        @staticmethod
        def forward(x):
            made = torch.zeros_like(x)
            made[0] = x.sum()
            parts = []
            parts.append(x * 2)
            return made + parts[0]

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            gradient = cotangent * 2
            gradient[0] = cotangent[0] * 2
            return gradient + cotangent[0]

    def count_and_fill(x):
        COUNTS["caller"] += 1
        return Filling.apply(x)

    reset()
    compiled = funcaot.compile(count_and_fill, backend="eager")
    for _ in range(3):
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert COUNTS["caller"] == 3
    assert not any(graph.opaque for graph in funcaot.report(compiled).entries[0].graphs)


def both_append(style):
    function = function_of(in_list, "forward", style)

    def both(x):
        SEEN.append("caller")
        return function.apply(function.apply(x))

    reset()
    return funcaot.compile(both, backend="eager")


def test_one_list_that_both_append_to():
    compiled = both_append("split")
    for _ in range(3):
        compiled(torch.ones(3))
    assert SEEN == ["caller", "rule", "rule"] * 3


def test_one_list_whose_order_would_be_another():
    compiled = both_append("numpy")
    with pytest.raises(UnsupportedError, match="which a Function that it calls changes, too"):
        compiled(torch.ones(3))
    assert SEEN == []


def test_an_error_after_the_function_ran_leaves_its_count():
    function = function_of(in_dictionary, "forward", "split")

    def failing(x):
        y = function.apply(x)
        if len(x) > 2:
            raise ValueError("too long")
        return y

    reset()
    compiled = funcaot.compile(failing, backend="eager")
    for calls in (1, 2):
        with pytest.raises(ValueError, match="too long"):
            compiled(torch.ones(3))
        assert COUNTS["rule"] == calls


REGISTRY = {str(index): [index] for index in range(300)}


def look_up():
    return REGISTRY["7"]


def helper():
    COUNTS["rule"] += 1
    return look_up if COUNTS["rule"] < 0 else None


def calls_helper(x):
    helper()
    return x * 2


def test_what_a_rule_calls_is_followed_when_it_runs():
    """A large library is reached from any rule that calls it, and little of it runs."""
    reset()
    watch = watch_of((calls_helper,), "rule")
    looked = watch.look()
    with watch.following():
        calls_helper(torch.ones(2))
    assert COUNTS["rule"] == 1
    assert not any(bag.thing is REGISTRY for bag in watch.bags)
    assert watch.take_back(looked)
    assert COUNTS["rule"] == 0


@torch.library.custom_op("funcaot_of_functions::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(look_up()[0])
    return x * 2


def calls_operator(x):
    COUNTS["rule"] += 1
    return doubled(x)


def test_kernels_of_operators_are_not_followed():
    reset()
    watch = watch_of((calls_operator,), "rule")
    looked = watch.look()
    with watch.following():
        calls_operator(torch.ones(2))
        helper()
    assert not any(bag.thing is REGISTRY for bag in watch.bags)
    assert watch.take_back(looked)
    assert (COUNTS["rule"], SEEN) == (0, [7])


def test_what_a_function_finds_when_it_runs_is_not_kept():
    assert id(REGISTRY) not in reached_by([(look_up,)])
    kept = Recorder()
    assert id(kept) in reached_by([(look_up, kept)])
    assert id(RECORDER) not in reached_by([(by_method,)])


def test_what_is_looked_at_is_not_traced(monkeypatch):
    """A capture follows the user's code; following its own comparisons took half of its time."""
    traced, here = set(), ran.Recorder.trace

    def trace(self, frame, event, argument):
        traced.add((frame.f_globals.get("__name__"), frame.f_code.co_name))
        return here(self, frame, event, argument)

    monkeypatch.setattr(ran.Recorder, "trace", trace)
    function = function_of(in_dictionary, "forward", "numpy")
    COUNTS["rule"] = 0
    compiled = funcaot.compile(function.apply, backend="eager")
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert COUNTS["rule"] == 1
    assert (__name__, "in_dictionary") in traced
    assert not {name for module, name in traced if module == "funcaot.aot.state.state"}


class CalledByC(torch.autograd.Function):
    """Its backward reaches a function of C, one of whose attributes is made when it is read."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (2 if OF_C.__module__ else 1)


def test_a_number_that_c_makes_when_it_is_read():
    """Each look found another object, so that the backward ran on real values."""
    compiled = funcaot.compile(lambda x: CalledByC.apply(x).sum(), backend="eager")
    for size in (2, 3, 4):
        x = torch.ones(size, requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [2.0] * size
    assert funcaot.report(compiled).cache_misses == 2
