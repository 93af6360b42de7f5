"""Tensors that a capture can't make symbolic are refused by name, or their calls are eager's."""

import warnings

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


class Marked(torch.Tensor):
    """A subclass that holds its data itself."""


KINDS = {
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "a tensor in a layout of oneDNN's own": lambda: torch.ones(3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", list(KINDS))
def test_kinds_are_refused(kind):
    tensor = KINDS[kind]()
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    with pytest.raises(UnsupportedError, match=f"called with {kind} as leaf 0.*\n.*Instead"):
        compiled(tensor)
    closed = funcaot.compile(lambda x: (x, tensor * 2), backend="eager")
    with pytest.raises(UnsupportedError, match=f"uses {kind} that isn't one of its arguments"):
        closed(torch.ones(3))
    assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


class Doubling(torch.Tensor):
    """Its ops are others than those of tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.sin else result


class Tagged(torch.Tensor):
    """It carries an attribute along, as images and boxes do."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls) and not hasattr(result, "tag"):
            result.tag = next(x.tag for x in args if isinstance(x, cls))
        return result


class Further(torch.Tensor):
    """It has another number of dimensions than C++ says."""

    ndim = 10


class Unwrapping(torch.Tensor):
    """What is computed of it is plain."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Weight(torch.nn.Parameter):
    """A parameter with a method in place of a tensor's."""

    def sin(self):
        return torch.cos(self)


class Stamped(torch.nn.Parameter):
    """A parameter with names of its own only, which is a tensor."""

    def loader(self):
        return 3


def tagged():
    value = torch.arange(3.0).as_subclass(Tagged)
    value.tag = "a"
    return value


def masked():
    return torch.masked.masked_tensor(torch.arange(3.0), torch.tensor([True, False, True]))


CLASSES = {
    "without functions": lambda: torch.arange(3.0).as_subclass(Marked),
    "others": lambda: torch.arange(3.0).as_subclass(Doubling),
    "an attribute": tagged,
    "plain results": lambda: torch.arange(3.0).as_subclass(Unwrapping),
    "masked": masked,
    "a method": lambda: Weight(torch.arange(3.0)),
    "a parameter": lambda: torch.nn.Parameter(torch.arange(3.0).as_subclass(Doubling)),
}
USES = {
    "argument": (lambda x: x.sin() * 2, lambda value: (value,)),
    "one of two": (lambda x, y: (x.sin() * y, y * 2), lambda value: (value, torch.ones(3))),
    "closed over": (None, lambda value: (torch.ones(3),)),
}


def seen(results):
    """Class, attributes and values of tensors, the values up to rounding."""
    results = results if isinstance(results, tuple) else (results,)
    plain = [r.to_tensor(7.0) if hasattr(r, "to_tensor") else r for r in results]
    values = [(p.as_subclass(torch.Tensor) * 1e5).round().tolist() for p in plain]
    return [
        (type(r), getattr(r, "tag", None), r.requires_grad, v)
        for r, v in zip(results, values, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:.*MaskedTensors:UserWarning")
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", CLASSES)
def test_classes_that_say_what_ops_do(kind, use, backend):
    """A graph that takes one for a plain tensor computes something else, or reads no memory."""
    value = CLASSES[kind]()
    function, make = USES[use]
    function = function or (lambda x: x * value.sin())
    compiled = funcaot.compile(function, backend=backend)
    wanted = seen(function(*make(value)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", funcaot.errors.CaptureWarning)
        for _ in range(3):
            assert seen(compiled(*make(value))) == wanted
    told = [str(warning.message) for warning in caught if "runs in eager" in str(warning.message)]
    assert not told
    assert len(compiled.entries) == 1
    if use == "argument":
        plain = torch.arange(3.0)
        assert_close(compiled(plain), plain.sin() * 2)
        assert len(compiled.entries) == 2
        assert seen(compiled(*make(value))) == wanted


def test_calls_left_to_eager_are_errors_where_all_is_to_be_compiled():
    compiled = funcaot.compile(lambda x: x.ndim + 1, backend="eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"Further, which says.*\n.*Instead"):
            compiled(torch.arange(3.0).as_subclass(Further))


def test_a_class_with_names_of_its_own_is_a_tensor():
    value = Stamped(torch.arange(3.0))
    compiled = funcaot.compile(lambda x: x * value, backend="eager")
    assert_close(compiled(torch.ones(3)), value)
    assert len(compiled.entries) == 1


def test_gradients_of_such_classes():
    compiled = funcaot.compile(lambda x: (x.sin() * x).sum(), backend="eager")
    value = torch.arange(3.0).as_subclass(Doubling).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", funcaot.errors.CaptureWarning)
        (first,) = torch.autograd.grad(compiled(value), value, create_graph=True)
        second = torch.autograd.grad(first.sum(), value)[0]
    x = torch.arange(3.0)
    assert_close(first.detach(), 2 * (x.cos() * x + x.sin()))
    assert_close(second, 2 * (2 * x.cos() - x * x.sin()))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_subclass(Marked) * 2,
        lambda x: torch.Tensor._make_subclass(Doubling, x).sin(),
    ],
)
def test_classes_that_a_function_makes(function):
    compiled = funcaot.compile(function, backend="eager")
    x = torch.arange(3.0)
    for _ in range(2):
        assert seen(compiled(x)) == seen(function(x))
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_causal_bias_is_an_argument(backend):
    """A tensor without values, which attention knows by its class."""
    attention = torch.nn.functional.scaled_dot_product_attention
    compiled = funcaot.compile(lambda q, k, b: attention(q, k, k, attn_mask=b), backend=backend)
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 4, 8)
    bias = causal_lower_right(3, 4)
    found = compiled(q, k, bias)
    assert len(compiled.entries) == 1
    assert_close(found, attention(q, k, k, attn_mask=bias))


SPARSE = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
PRODUCTS = {
    "given": lambda x, a, layout: a @ x + 1,
    "made inside": lambda x, a, layout: a.to_dense().to_sparse(layout=layout) @ (x * 2),
    "beside a write": lambda x, a, layout: a @ x.mul_(2),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("layout", SPARSE, ids=str)
def test_sparse_tensors_on_the_default_backend(product, layout):
    compiled = funcaot.compile(product)
    for factor in (1.0, 3.0):
        dense = torch.tensor([[0.0, factor], [2.0, 0.0]])
        matrices = [dense.to_sparse(layout=layout) for _ in range(2)]
        x, y = torch.ones(2), torch.ones(2)
        found = compiled(x, matrices[0], layout)
        wanted = product(y, matrices[1], layout)
        assert found.layout is wanted.layout
        assert_close(found, wanted)
        assert_close(x, y)


class Coded(torch.nn.Parameter):
    """A weight that says how it is coded, as files of quantized models have them."""

    def __new__(cls, data, kind=None):
        return torch.Tensor._make_subclass(cls, data, False)

    def __init__(self, data, kind=None):
        self.kind = kind

    def plain(self):
        return torch.Tensor._make_subclass(torch.Tensor, self, False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        kind = next((x.kind for x in args if isinstance(x, Coded)), None)
        return cls(result, kind) if isinstance(result, torch.Tensor) else result


class Duck:
    """No tensor, but functions of torch take it."""

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        held = [x.held if isinstance(x, Duck) else x for x in args]
        return func(*held, **(kwargs or {}))


class Odd(Doubling):
    """It has another number of dimensions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.ndim.__get__:
            return 10
        return super().__torch_function__(func, types, args, kwargs)


def odd():
    return torch.ones(2, 2).as_subclass(Odd)


def marked_inside(x):
    made = x.as_subclass(Marked)
    made.tag = "b"
    return made, made * 2


SITUATIONS = {
    "a method of its own": (lambda w: (w * 2).plain() * 3, lambda: (Coded(torch.ones(2), 4),)),
    "an attribute is read": (lambda w: (w * 2) + (w * 2).kind, lambda: (Coded(torch.ones(2), 4),)),
    "not a tensor": (lambda d: torch.add(d, 1.0, alpha=2.0), lambda: (Duck(torch.ones(2)),)),
    "a property": (lambda x: x.ndim + torch.ones(2), lambda: (odd(),)),
    "isinstance": (lambda x: x * 2 if isinstance(x, Odd) else x, lambda: (odd(),)),
    "iterated": (lambda x: tuple(x), lambda: (torch.ones(3).as_subclass(Marked),)),
    "in a list": (lambda xs: torch.cat(xs), lambda: ([odd(), torch.ones(2, 2)],)),
    "written to": (lambda x: (x.mul_(2), x)[1], lambda: (odd(),)),
    "written of": (lambda y, x: y.add_(x), lambda: (torch.ones(2, 2), odd())),
    "a view": (lambda x: x.t(), lambda: (odd(),)),
    "made inside, with an attribute": (marked_inside, lambda: (torch.ones(2),)),
}


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_as_in_eager(situation):
    function, make = SITUATIONS[situation]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        given, wanted = make(), make()
        assert seen(compiled(*given)) == seen(function(*wanted))
        tensors = [
            tuple(value for value in values if isinstance(value, torch.Tensor))
            for values in (given, wanted)
        ]
        assert seen(tensors[0]) == seen(tensors[1])
