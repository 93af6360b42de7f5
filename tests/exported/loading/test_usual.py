"""The short way of a loaded artifact takes what the long way takes, and does as it does."""

import pytest
import torch
import torch.utils._python_dispatch
from torch.autograd import forward_ad

import funcaot
from funcaot.exported.loading.usual import UNUSUAL


def function(x, y):
    """Two results, one of which is an argument, and a number that depends on an open size."""
    return {"sum": x @ y + x.shape[0], "same": (y, x.sin())}


def rand(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    atoms = torch.export.Dim("atoms", min=2, max=8)
    path = tmp_path_factory.mktemp("usual") / "function.pt2"
    examples = rand(4, 3), rand(3, 5)
    funcaot.export(function, examples, path=path, dynamic_shapes=({0: atoms}, None))
    return funcaot.load(path)


def inferred(*shape):
    with torch.inference_mode():
        return rand(*shape)


def freed():
    x = rand(4, 3)
    x.untyped_storage().resize_(0)
    return x


def wrapped_after_its_transform():
    kept = []
    torch.func.vmap(lambda x: kept.append(x) or x)(rand(2, 4, 3))
    return kept[0]


Y = rand(3, 5)
BLOCK = rand(16, 3)
CALLS = {
    "usual": (rand(4, 3), Y),
    "another size": (rand(7, 3), Y),
    "one memory twice": (BLOCK[:4], BLOCK.reshape(-1)[:15].reshape(3, 5)),
    "transposed": (rand(3, 4).t(), Y),
    "with a gap": (rand(8, 3)[::2], Y),
    "an offset": (rand(6, 3)[2:], Y),
    "negated": (torch.complex(rand(4, 3), rand(4, 3)).conj().imag.contiguous(), Y),
    "inference": (inferred(4, 3), Y),
    "parameter": (torch.nn.Parameter(rand(4, 3), requires_grad=False), Y),
    "requires grad": (rand(4, 3).requires_grad_(), Y),
    "too many": (rand(9, 3), Y),
    "too few": (rand(1, 3), Y),
    "wrong size": (rand(4, 2), Y),
    "empty": (rand(4, 0), Y),
    "other rank": (rand(3), Y),
    "other dtype": (rand(4, 3, dtype=torch.float32), Y),
    "sparse": (rand(4, 3).to_sparse(), Y),
    "meta": (rand(4, 3).to("meta"), Y),
    "no tensor": (rand(4, 3), 3.0),
    "one argument": (rand(4, 3),),
    "three arguments": (rand(4, 3), Y, Y),
    "freed": (freed(), Y),
    "of a transform": (wrapped_after_its_transform(), Y),
}
MODES = {
    "alone": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "forward mode": forward_ad.dual_level,
    "dispatch mode": torch.utils._python_dispatch.TorchDispatchMode,
}


def outcome(loaded, arguments, mode):
    """What a call gives, or the words of its error, with what may be seen of the results."""
    try:
        with mode():
            found = loaded(*arguments)
    except funcaot.errors.FuncaotError as error:
        return type(error), str(error)
    leaves = found["sum"], *found["same"]
    places = [leaf.untyped_storage().data_ptr() for leaf in leaves]
    given = [a.untyped_storage().data_ptr() for a in arguments]
    aliases = [[place == other for other in (*places, *given)] for place in places]
    looks = [
        (leaf.stride(), leaf.dtype, leaf.requires_grad, leaf.is_inference()) for leaf in leaves
    ]
    return [leaf.clone().tolist() for leaf in leaves], aliases, looks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_as_the_long_way(loaded, monkeypatch, name, mode):
    arguments = CALLS[name]
    found = outcome(loaded, arguments, MODES[mode])
    with monkeypatch.context() as patch:
        patch.setattr(loaded, "_usual", None)
        assert outcome(loaded, arguments, MODES[mode]) == found
    if mode == "alone" and not isinstance(found[0], type):
        expected = function(*arguments)
        torch.testing.assert_close(torch.tensor(found[0][0]).double(), expected["sum"])


def test_most_calls_are_usual(loaded):
    assert loaded._usual(CALLS["usual"]) is not UNUSUAL
    assert loaded._usual(CALLS["transposed"]) is UNUSUAL
    with torch.autocast("cpu"):
        assert loaded._usual(CALLS["usual"]) is UNUSUAL
