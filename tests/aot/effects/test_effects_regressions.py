"""Effects that random programs found wrong once, each against eager."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.programs.differential import Inputs, check


def parts(*slices, grad=False):
    """Views of one tensor of twelve elements."""

    def make():
        leaf = torch.linspace(0.3, 1.7, 12, dtype=torch.float64)
        base = leaf.requires_grad_() * 1.0 if grad else leaf
        return Inputs([base[part] for part in slices], [base], [leaf] if grad else [])

    return make


def several_times(function, make_inputs, calls):
    """What inputs look like after several calls on each of several fresh ones."""
    found = []
    for _ in range(3):
        inputs = make_inputs()
        for _ in range(calls):
            try:
                function(*inputs)
            except RuntimeError as error:
                found.append(type(error))
        found += [(x.shape, x.stride(), x._version, x.requires_grad, x.tolist()) for x in inputs]
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x.transpose_(0, 1),
        lambda x, w: x.mul_(2).unsqueeze_(0),
        lambda x, w: x.mul_(w),
        lambda x, w: (x.mul_(2), x.requires_grad_()),
        lambda x, w: x.resize_(2),
    ],
    ids=["transpose_", "unsqueeze_", "gets a gradient", "requires_grad_", "resize_"],
)
@pytest.mark.parametrize("dynamic", [None, False])
def test_generated_code_takes_inputs_as_they_come_in(function, dynamic):
    # Guards made of the tensors of a call would see them as the call left them.
    def make():
        return torch.arange(12.0).view(3, 4), torch.tensor(2.0, requires_grad=True)

    compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
    assert several_times(compiled, make, 3) == several_times(function, make, 3)


def test_a_gradient_enabled_inside_of_no_grad_reaches_the_base_of_an_input():
    def function(x):
        with torch.enable_grad():
            x.sin_()
        return x

    check(function, parts(slice(0, 4), grad=True), grad_mode=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x.set_(y), y.add_(1))[1],
        lambda x, y: (lambda z: (x.set_(z), z.add_(1), z)[2])(y * 3),
        lambda x, y: (x.set_(y[1:]), x.mul_(2))[0],
    ],
    ids=["an input", "an intermediate that is returned", "a view of an input"],
)
def test_memory_that_an_input_is_set_to_is_shared(function):
    def make():
        return [torch.ones(3), torch.arange(4.0)]

    results = []
    for called in (function, funcaot.compile(function, backend="eager")):
        x, y = make()
        output = called(x, y)
        shared = [x.data_ptr() == output.data_ptr(), x.data_ptr() == y.data_ptr()]
        x.fill_(7)
        results.append((shared, x.tolist(), y.tolist(), output.tolist()))
    assert results[0] == results[1]


PLACES = {
    "read": lambda x, y: (x.as_strided((2,), (1,), 0).sin(), y * 2),
    "returned": lambda x, y: (x.as_strided((2,), (1,), 1), y * 2),
    "by its own offset": lambda x, y: (
        x.as_strided((2,), (1,), x.storage_offset() + 1) * x.storage_offset(),
        y,
    ),
    "beyond": lambda x, y: (x[1:2].as_strided((3,), (1,)), y * 2),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "first", [slice(0, 12), slice(0, 4), slice(5, 9), slice(2, 12, 2)], ids=str
)
@pytest.mark.parametrize("name", PLACES)
def test_places_in_a_storage(name, first, grad):
    check(PLACES[name], parts(first, slice(2, 6), grad=grad))


def test_the_offset_is_part_of_the_signature():
    compiled = funcaot.compile(PLACES["read"], backend="eager")
    for first in (slice(0, 4), slice(5, 9), slice(0, 4), slice(3, 7)):
        check(PLACES["read"], parts(first, slice(2, 6)), compiled=compiled)


def test_what_was_saved_of_a_place_is_checked():
    def function(x, y):
        return x.as_strided((2,), (1,), 3), y.sin()

    check(function, parts(slice(6, 10), slice(3, 9), grad=True), writes=(0, 1))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sin().t().exp_(), lambda x: x.sin().swapaxes_(0, 1).relu_()],
    ids=["exp_", "relu_"],
)
def test_a_result_that_was_saved_in_another_layout_is_checked(function):
    for called in (function, funcaot.compile(function, backend="eager")):
        y = called(torch.ones(2, 3, requires_grad=True))
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_result_that_was_saved_and_is_returned_detached_too_is_checked():
    def function(x):
        y = x.sin()
        other = torch.add(y.detach(), 1.0, out=y.detach())
        torch.nn.functional.elu_(y)
        return other, y

    for called in (function, funcaot.compile(function, backend="eager")):
        other, y = called(torch.ones(6, requires_grad=True) * 1)
        other.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_views_know_that_their_base_requires_grad():
    def make():
        base = torch.linspace(0.3, 1.7, 12, dtype=torch.float64)
        leaf = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        return Inputs([base[:4], base[2:8], leaf], [base], [leaf])

    check(lambda x, y, w: y.add_(w), make)


def test_a_leaf_that_shares_memory():
    def make():
        base = torch.linspace(0.3, 1.7, 12, dtype=torch.float64)
        leaf = base[2:8].detach().requires_grad_()
        return Inputs([leaf, base[:4], base[3:5]], [base], [leaf])

    check(lambda x, y, z: (x.sin(), y.mul_(2), x * 3), make, derivatives=False)
    gradients = []
    for called in (PLACES["read"], funcaot.compile(PLACES["read"], backend="eager")):
        inputs = make()
        gradients += torch.autograd.grad(called(*inputs.args[:2])[0].sum(), inputs.leaves)
    torch.testing.assert_close(*gradients)


REFUSED = {
    "unsafe_split, written": (lambda x: (x.unsafe_split(1)[0].mul_(2), x)[1], "unsafe_split"),
    "unsafe_chunk, returned": (lambda x: x.unsafe_chunk(2)[0], "unsafe_split"),
    "unsafe_chunk, source written": (
        lambda x: (lambda parts: (x.mul_(2), parts[0] + 1)[1])(x.unsafe_chunk(2)),
        "unsafe_split",
    ),
    "unfold, written": (lambda x: x.unfold(0, 2, 1).add_(1), "one place in memory"),
    "set_ to itself": (lambda x: x.set_(x), "shares its memory"),
    "set_ to a storage": (lambda x: x.set_(torch.ones(2).untyped_storage()), "with a storage"),
    "resize_ with room": (lambda x: x.resize_(6), "more elements|resizes one"),
    "a view before requires_grad_": (
        lambda x: (x.view(2, 2), x.requires_grad_())[0],
        "before argument 0",
    ),
    "as_strided_, cut off after a write": (
        lambda x: x.mul_(2).as_strided_((2,), (1,), 7),
        "as_strided",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_so(name):
    function, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message) as caught:
        funcaot.compile(function, backend="eager")(*parts(slice(3, 7))().args)
    assert caught.value.remedy


BY_KEYWORD = {
    "as_strided": lambda x: torch.as_strided(input=x, size=(2,), stride=(1,)),
    "relu_": lambda x: torch.relu_(input=x),
    "of a view": lambda x: torch.relu_(input=x[1:]) + x[:-1],
}


@pytest.mark.parametrize("name", BY_KEYWORD)
def test_the_tensor_may_be_given_by_keyword(name):
    check(BY_KEYWORD[name], parts(slice(3, 7), grad=True))


def test_resize_of_all_there_is():
    def make():
        return Inputs([torch.ones(4)], [], [])

    check(lambda x: x.resize_(6).zero_(), make)


COMPLEX = {
    "conj": lambda z: z.conj().mul_(2j),
    "imag": lambda z: z.imag.mul_(2),
    "real": lambda z: (z.real.add_(1), z * 2)[1],
    "view_as_real": lambda z: (torch.view_as_real(z).mul_(3), z)[1],
    "one number": lambda z: (torch.view_as_real(z)[0].mul_(3), z)[1],
    "imag of conj": lambda z: z.conj().imag.mul_(3),
    "conj, returned": lambda z: (z.conj(), z.conj().real, z.imag),
    "written and conj": lambda z: z.mul_(2j).conj(),
    "conj_physical_": lambda z: z.conj_physical_(),
    "copy_ of conj": lambda z: z.copy_(z.conj()),
}


def complex_input(*, grad, conjugate):
    def make():
        generator = torch.Generator().manual_seed(1)
        leaf = torch.randn(4, dtype=torch.complex128, generator=generator)
        base = leaf.requires_grad_() * 1 if grad else leaf
        return Inputs([base.conj() if conjugate else base], [base], [])

    return make


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", COMPLEX)
def test_views_of_complex_inputs(name, grad, conjugate):
    make = complex_input(grad=grad, conjugate=conjugate)
    if conjugate and name in ("view_as_real", "one number"):
        pytest.skip("eager refuses")
    if grad and conjugate and name in ("imag", "real", "imag of conj"):
        with pytest.raises(UnsupportedError, match=r"argument 0 .* conjugate"):
            check(COMPLEX[name], make, derivatives=False)
        return
    check(COMPLEX[name], make, derivatives=False)
    if grad:
        gradients = []
        for called in (COMPLEX[name], funcaot.compile(COMPLEX[name], backend="eager")):
            leaf = torch.tensor([1 + 2j, 3 - 1j, 0.5j, 2.0], requires_grad=True)
            z = leaf * (1 + 1j)
            outputs = called(z.conj() if conjugate else z)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            total = sum((y * 3).abs().square().sum() for y in (*outputs, z * (2 + 1j)))
            gradients += torch.autograd.grad(total, leaf)
        torch.testing.assert_close(*gradients)


def of_a_leaf():
    leaf = torch.linspace(0.3, 1.7, 12, dtype=torch.float64, requires_grad=True)
    return Inputs([leaf.view(12)], [leaf], [leaf])


def of_no_leaf():
    leaf = torch.linspace(0.3, 1.7, 12, dtype=torch.float64, requires_grad=True)
    whole = leaf * 1.0
    return Inputs([whole.view(12)], [whole], [leaf])


UNCHANGED = {
    "transpose_": lambda x: x.transpose_(0, -1),
    "squeeze_": lambda x: x.squeeze_(),
    "there and back": lambda x: x.unsqueeze_(0).squeeze_(0),
    "of a view": lambda x: x.view_as(x).transpose_(0, -1),
}


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("make", [of_a_leaf, of_no_leaf])
@pytest.mark.parametrize("name", UNCHANGED)
def test_a_shape_that_is_changed_to_what_it_was(name, make, grad_mode):
    """Autograd records it, and refuses it of a leaf's view."""

    def function(x):
        UNCHANGED[name](x)
        return x.sin()

    try:
        check(function, make, grad_mode=grad_mode)
    except UnsupportedError:
        assert not grad_mode


RESHAPED = {
    "before": lambda x: (x.t_(), x.sin(), x)[1:],
    "in between": lambda x: (x.sin(), x.unsqueeze_(0), x.cos(), x)[2:],
    "to the same": lambda x: (x.transpose_(0, 0), x.sin(), x)[1:],
}


@pytest.mark.parametrize("name", RESHAPED)
def test_a_write_after_the_call_to_what_was_reshaped_and_saved(name):
    """Only its shape changed in the call, but its version counts for what was saved since."""

    def make():
        leaf = torch.linspace(0.3, 1.7, 6, dtype=torch.float64, requires_grad=True)
        return Inputs([(leaf * 1.0).view(2, 3)], [], [leaf])

    check(RESHAPED[name], make)


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("make", [lambda x: x.sum(), lambda x: x[:2] * 2, lambda x: (x * 2)[1:3]])
def test_a_place_beyond_the_memory_of_an_intermediate(make, start):
    """Eager's error, even if nobody needs what would be there."""

    def function(x):
        y = make(x)
        y.as_strided((2,), (1,), start)
        return x

    check(function, parts(slice(3, 7)))


def test_a_view_of_what_an_input_was_before_it_shrank():
    def function(x):
        y = x.narrow(0, 0, 3)
        x.as_strided_((2,), (1,))
        return x, y

    compiled = funcaot.compile(function, backend="eager")
    for grad in (True, False):
        with pytest.raises(UnsupportedError, match="uses an earlier view of it"):
            compiled(*parts(slice(None), grad=grad)().args)


@pytest.mark.parametrize("name", ["relu_", "leaky_relu_", "hardtanh_"])
def test_what_only_asks_for_booleans_in_place_after_a_change_of_shape(name):
    """The view that autograd saved is made anew when it is read."""

    def function(x):
        y = x * 0.5 - 0.5
        y.unsqueeze_(0)
        y.t_()
        getattr(torch.nn.functional, name)(y)
        return y

    check(function, parts(slice(None), grad=True))


def hidden(x):
    """A leaf that requires grad and that nobody sees."""
    return x.clone().requires_grad_()


HIDDEN = {
    "written": lambda x: x.mul_(hidden(x)),
    "and used": lambda x: (x.mul_(hidden(x)), x * 2),
    "and written again": lambda x: (x.mul_(hidden(x)), x.__setitem__(0, 3.0))[0],
}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_input_that_depends_on_a_leaf_nobody_sees(name):
    check(HIDDEN[name], parts(slice(3, 7)))


WRITTEN = {
    "relu_": torch.relu_,
    "elu_": torch.nn.functional.elu_,
    "sigmoid_": torch.sigmoid_,
    "mul_": lambda x: x.mul_(2),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_change_of_shape_after_a_view_was_written_to_and_saved(name):
    """It writes nothing, but the version of the memory counts it."""

    def function(x, y):
        WRITTEN[name](x)
        y.transpose_(0, -1)
        return x * 1

    check(function, parts(slice(2, 8), slice(0, 4), grad=True))


def test_detach_in_place_under_forward_mode_is_refused():
    compiled = funcaot.compile(lambda x: (x.detach_(), x * 2)[1], backend="eager")
    with pytest.raises(UnsupportedError, match="detach_ in forward mode"):
        torch.func.jvp(lambda x: compiled(x * 1), (torch.ones(2),), (torch.ones(2),))


@pytest.mark.parametrize("shape", [(1, 4), (4,)])
def test_a_change_of_shape_under_grad_of_what_is_saved(shape):
    def function(x):
        x.squeeze_()
        return x * x

    compiled = funcaot.compile(function, backend="eager")
    x = torch.linspace(0.3, 1.7, 4).view(shape)
    wanted = torch.func.grad(lambda x: function(x * 1).sum())(x)
    torch.testing.assert_close(torch.func.grad(lambda x: compiled(x * 1).sum())(x), wanted)


TEXTS = {
    "returned": lambda x, kept: (x, repr(x)),
    "in another text": lambda x, kept: {"text": f"the values are {x * 2}"},
    "stored": lambda x, kept: kept.append(str(x)),
}


@pytest.mark.filterwarnings("ignore:A tensor float32:funcaot.errors.CaptureWarning")
@pytest.mark.parametrize("what", TEXTS)
def test_the_text_of_a_tensor_is_refused(what):
    kept = []
    with pytest.raises(UnsupportedError, match="the text of a tensor"):
        funcaot.compile(TEXTS[what], backend="eager")(torch.ones(2), kept)
    assert kept == []


@pytest.mark.parametrize("lazily", [torch._neg_view, torch.conj])
def test_several_inputs_with_lazy_bits_are_written_to(lazily):
    """Inputs get their data by one op, which takes no tensor whose conjugation waits."""

    def function(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    compiled = funcaot.compile(function, backend="eager")
    seen = []
    for call in (function, compiled, compiled):
        x, y = (lazily(torch.tensor([1 + 2j, 3 - 1j]) * scale) for scale in (1, 2))
        seen.append([call(x, y), x.resolve_conj().resolve_neg(), y.resolve_conj().resolve_neg()])
    for found in seen[1:]:
        torch.testing.assert_close(found, seen[0])
