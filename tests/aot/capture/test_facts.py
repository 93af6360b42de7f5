"""What a function reads of its inputs beside their elements: each way, of each kind of input."""

import warnings
from functools import partial

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

OTHER = torch.ones(4)

READS = {
    "_is_view": lambda x: x._is_view(),
    "_base is None": lambda x: x._base is None,
    "_base of a view of it": lambda x: x[:2]._base is x,
    "_version": lambda x: x._version,
    "_version of a view of it": lambda x: x[:2]._version,
    "_version after a write": lambda x: (x.detach().add_(0), x._version)[1],
    "hooks": lambda x: len(x._backward_hooks or ()),
    "hooks after accumulation": lambda x: x._post_accumulate_grad_hooks is None,
    "is_inference": lambda x: x.is_inference(),
    "torch.is_inference": torch.is_inference,
    "is_shared": lambda x: x.is_shared(),
    "output_nr": lambda x: x.output_nr,
    "retains_grad": lambda x: x.retains_grad,
    "is_leaf": lambda x: x.is_leaf,
    "grad_fn is None": lambda x: x.grad_fn is None,
    "is_contiguous": lambda x: x.is_contiguous(),
    "storage_offset": lambda x: x.storage_offset(),
    "stride": lambda x: x.stride(),
    "is_set_to": lambda x: x.is_set_to(OTHER),
    "is_set_to itself": lambda x: x.is_set_to(x),
    "const_data_ptr": lambda x: x.const_data_ptr() % 64,
    "storage size": lambda x: x.untyped_storage().nbytes(),
    "grad is None": lambda x: x.grad is None,
    "is_neg": lambda x: x.is_neg(),
    "an attribute": lambda x: getattr(x, "mark", 0),
    "type": lambda x: type(x).__name__,
}
REFUSED = {
    "_base is None",
    "_base of a view of it",
    "hooks",
    "hooks after accumulation",
    "is_set_to",
    "const_data_ptr",
    "storage size",
}


def leaf():
    return torch.ones(4, requires_grad=True)


def written():
    return torch.zeros(4).add_(1)


def retaining():
    x = leaf() * 1
    x.retain_grad()
    return x


def hooked(method):
    x = leaf()
    getattr(x, method)(lambda _: None)
    return x


def with_grad():
    x = leaf()
    x.grad = torch.ones(4)
    return x


def marked(value):
    x = torch.ones(4)
    x.mark = value
    return x


def inference():
    with torch.inference_mode():
        return torch.ones(4)


MAKERS = {
    "plain": lambda: torch.ones(4),
    "a view": lambda: torch.ones(8)[:4],
    "a view further on": lambda: torch.ones(8)[4:],
    "every other": lambda: torch.ones(8)[::2],
    "written": written,
    "leaf": leaf,
    "parameter": lambda: torch.nn.Parameter(torch.ones(4)),
    "not a leaf": lambda: leaf() * 1,
    "a view with a history": lambda: (torch.ones(8, requires_grad=True) * 1)[:4],
    "the second result": lambda: torch.ones(2, 4).requires_grad_().unbind(0)[1],
    "retaining": retaining,
    "hook": partial(hooked, "register_hook"),
    "hook after accumulation": partial(hooked, "register_post_accumulate_grad_hook"),
    "with grad": with_grad,
    "marked 1": partial(marked, 1),
    "marked 2": partial(marked, 2),
    "shared": lambda: torch.ones(4).share_memory_(),
    "inference": inference,
    "negated": lambda: torch._neg_view(-torch.ones(4)),
    "another view of the closed-over one": lambda: OTHER[:],
}


def outcome(function, x):
    try:
        return function(x)
    except UnsupportedError:
        raise
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("backwards", [False, True], ids=["", "backwards"])
@pytest.mark.parametrize("name", READS)
def test_reads_of_arguments(name, backwards):
    read = READS[name]

    def function(x):
        return read(x), x.detach() * 2

    compiled = funcaot.compile(function, backend="eager")
    makers = [*reversed(MAKERS.items())] if backwards else [*MAKERS.items()]
    answers, refused = set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of many programs, and of .grad of what isn't a leaf
        for kind, make in [*makers, *makers]:
            if "write" in name and "closed-over" in kind:
                continue  # Eager's write would be seen by the call.
            expected = outcome(function, make())
            try:
                found = outcome(compiled, make())
            except UnsupportedError:
                assert name in REFUSED, kind
                refused += 1
                continue
            assert isinstance(found, tuple) == isinstance(expected, tuple), kind
            if isinstance(found, tuple):
                answers.add(expected[0])
                assert found[0] == expected[0], kind
                assert torch.equal(found[1], expected[1]), kind
    assert len(answers) > 1 or refused or "itself" in name
    assert refused or name not in REFUSED


@pytest.mark.parametrize("name", ["_version", "_is_view", "retains_grad", "is_shared"])
def test_reads_of_what_is_closed_over(name):
    """The same tensor, whose answers change between calls."""
    weight = leaf() * 1
    read = READS[name]

    def function(x):
        return read(weight), x * weight.detach()

    compiled = funcaot.compile(function, backend="eager")
    changes = [
        lambda: weight.detach().add_(1),
        weight.retain_grad,
        lambda: weight.detach().mul_(2),
        weight.share_memory_,
        lambda: weight.detach().set_(torch.ones(4)[1:]),
    ]
    for change in (*changes, None):
        for _ in range(2):
            x = torch.ones(weight.shape)
            expected, found = function(x), compiled(x)
            assert found[0] == expected[0]
            assert torch.equal(found[1], expected[1])
        if change is not None:
            change()


def test_a_memo_by_versions():
    """What is computed again when its tensor was written to, as caches do."""

    class Memo:
        version = -1
        value = None

    def function(memo, x):
        if memo.version != x._version:
            memo.value, memo.version = x.sum(), x._version
        return memo.value * 2

    compiled = funcaot.compile(function, backend="eager")
    mine, theirs, x, y = Memo(), Memo(), torch.ones(3), torch.ones(3)
    for round_ in range(4):
        assert torch.equal(compiled(mine, x), function(theirs, y))
        assert torch.equal(compiled(mine, x), function(theirs, y))
        assert mine.version == theirs.version
        if round_ % 2:
            x.add_(1)
            y.add_(1)


def test_recompilation_says_what_was_read():
    compiled = funcaot.compile(lambda x: x * x._version, backend="eager")
    x = torch.ones(3)
    for _ in range(8):
        compiled(x)
        x.add_(1)
    with pytest.warns(funcaot.errors.RecompileWarning, match="_version of x was 7 and is now 8"):
        compiled(x)


def test_what_has_no_answer_is_refused_by_name():
    base = torch.ones(4)
    for function, words in (
        (lambda x: x._base.sum(), "_base of an input that is a view"),
        (lambda x: x.is_set_to(base), "lie at one place"),
        (lambda x: x.const_data_ptr(), "address of a tensor"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            funcaot.compile(function, backend="eager")(base[:2])


def test_detaching_a_view_in_place_raises_as_in_eager():
    compiled = funcaot.compile(lambda x: x.detach_() * 2, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        compiled(torch.ones(4)[:2])
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def _forms(x):
    yield from (x, x.detach(), x.data, x.view(-1), x.T, x[0:], x[1:], x.flatten(), x.contiguous())
    yield from (x.clone(), x.reshape(2, -1), x.T.reshape(-1), x.to(x.dtype), x.double())


def test_addresses_of_what_a_function_makes_are_compared():
    parameter = torch.nn.Parameter(torch.ones(3, 4))

    def function(x):
        made = x.sin()
        equal = [[y.data_ptr() == z.data_ptr() for y in _forms(z)] for z in (x, made, parameter)]
        other = [[y.data_ptr() != z.data_ptr() for y in _forms(z)] for z in (x, made, parameter)]
        kept = {made.data_ptr(): 1, made.clone().data_ptr(): 2}
        return made * 2, equal, other, kept[made.view(-1).data_ptr()], len(kept)

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 3, 5, 6):
        x = torch.rand(size, 4)
        (y, *found), (expected, *wanted) = compiled(x), function(x)
        assert torch.equal(y, expected)
        assert found == wanted


KEPT = {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.data_ptr(),
        lambda x: x * (x.data_ptr() % 64),
        lambda x: x if x.data_ptr() == OTHER.data_ptr() else -x,
        lambda x: {x.sin().data_ptr(): 1},
        lambda x: (x, [{x.data_ptr()}]),
        lambda x: KEPT.setdefault(x.sin().data_ptr(), 1),
        lambda x: x * len(f"{x.data_ptr()}"),
    ],
)
def test_an_address_that_is_needed_is_refused(function):
    with pytest.raises(UnsupportedError, match=r"address of a tensor \(data_ptr\)"):
        funcaot.compile(function, backend="eager")(torch.ones(2))
    assert not KEPT


def test_whether_memory_is_pinned():
    """A capture's tensors can't be asked, as that is an op."""
    compiled = funcaot.compile(lambda x: x + x.is_pinned(), backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
