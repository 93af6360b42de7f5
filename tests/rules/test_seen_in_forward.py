"""What forward of a Function reads of autograd is what eager's reads."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jvp, vjp, vmap

import funcaot

X = torch.tensor([0.5, 2.0])


def reads(tensor):
    return tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is None


class Split(torch.autograd.Function):
    """With `setup_context`."""

    generate_vmap_rule = True
    seen: list = []

    @staticmethod
    def forward(x, w):
        Split.seen.append(("forward", reads(x), reads(w), torch.is_grad_enabled()))
        return x * w * (3.0 if x.requires_grad else 1.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        Split.seen.append(("setup", ctx.needs_input_grad, torch.is_grad_enabled()))
        ctx.scale = 3.0 if ctx.needs_input_grad[0] else 1.0
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        Split.seen.append(("backward", ctx.needs_input_grad))
        x, w = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (g * w * ctx.scale if needs[0] else None), (g * x * 2 if needs[1] else None)


class Old(torch.autograd.Function):
    """With `forward(ctx, ...)`."""

    seen: list = []

    @staticmethod
    def forward(ctx, x, w):
        Old.seen.append((ctx.needs_input_grad, reads(x), reads(w), torch.is_grad_enabled()))
        ctx.scale = 3.0 if x.requires_grad else 1.0
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(x)
        ctx.w = w
        return x * w * ctx.scale

    @staticmethod
    def backward(ctx, g):
        Old.seen.append(ctx.needs_input_grad)
        needs = ctx.needs_input_grad
        to_w = (g * ctx.saved_tensors[0]) if needs[1] else None
        return (g * ctx.w * ctx.scale if needs[0] else None), to_w


def first_then(seen):
    """What was read, each once: a capture runs forward more than once."""
    return list(dict.fromkeys(seen))


def calls():
    """Calls with inputs that differ in how they are differentiated: a name and how to make them."""

    def leaf(value=X):
        return value.clone().requires_grad_()

    return {
        "none": lambda: (X.clone(), X.clone()),
        "first": lambda: (leaf(), X.clone()),
        "second": lambda: (X.clone(), leaf()),
        "both": lambda: (leaf(), leaf()),
        "not leaves": lambda: (leaf() * 1, leaf() * 2),
        "same": lambda: (t := leaf(), t),
    }


def body(function):
    def f(x, w):
        return function.apply(x, w).sum() + function.apply(x * 2, w.detach()).sum()

    return f


def outcome(f, make, function):
    function.seen.clear()
    inputs = make()
    y = f(*inputs)
    wanted = [t for t in dict.fromkeys(inputs) if t.requires_grad]
    gradients = torch.autograd.grad(y, wanted, allow_unused=True) if wanted else ()
    return first_then(function.seen), y, gradients


@pytest.mark.parametrize("kind", ["eager", "inductor"])
@pytest.mark.parametrize("function", [Split, Old])
def test_in_a_capture(function, kind):
    compiled = funcaot.compile(body(function), backend=kind)
    for name, make in (*calls().items(), *calls().items()):
        seen, y, gradients = outcome(body(function), make, function)
        seen_here, y_here, gradients_here = outcome(compiled, make, function)
        assert set(seen_here) <= set(seen), name
        torch.testing.assert_close((y_here, gradients_here), (y, gradients), msg=name)


@pytest.mark.parametrize("function", [Split, Old])
def test_without_grad_mode(function):
    compiled = funcaot.compile(body(function), backend="eager")
    for make in calls().values():
        inputs = make()
        with torch.no_grad():
            function.seen.clear()
            expected = body(function)(*inputs)
            seen = set(function.seen)
            function.seen.clear()
            assert torch.equal(compiled(*inputs), expected)
        assert set(function.seen) <= seen


TRANSFORMS = {
    "grad of second": lambda f: grad(f, argnums=1)(X, X + 1),
    "grad of both": lambda f: grad(f, argnums=(0, 1))(X, X + 1),
    "vjp": lambda f: vjp(f, X, X + 1)[1](torch.tensor(1.0)),
    "vmap of grad": lambda f: vmap(grad(f))(torch.stack([X, X + 1]), torch.stack([X, X * 2])),
    "grad of grad": lambda f: grad(lambda x: (grad(f, argnums=1)(x, x + 1) ** 2).sum())(X),
    "above base": lambda f: grad(f, argnums=1)(X.clone().requires_grad_(), X + 1),
}


@pytest.mark.parametrize("ask", TRANSFORMS)
def test_split_functions_under_transforms_are_torchs_own(ask):
    def f(x, w):
        return Split.apply(x, w).sum()

    Split.seen.clear()
    expected = TRANSFORMS[ask](f)
    seen = list(Split.seen)
    Split.seen.clear()
    with funcaot.install():
        found = TRANSFORMS[ask](f)
    assert Split.seen == seen
    torch.testing.assert_close(found, expected)
    Split.seen.clear()
    compiled = funcaot.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(TRANSFORMS[ask](compiled), expected)


class Refuses(torch.autograd.Function):
    """As in gpytorch: no gradient with respect to `x`."""

    @staticmethod
    def forward(ctx, x, w):
        if any(ctx.needs_input_grad[:1]):
            raise RuntimeError("no gradient with respect to x")
        ctx.save_for_backward(x.div(2))
        return x * w

    @staticmethod
    def backward(ctx, g):
        return None, (2 * g * ctx.saved_tensors[0]).sum()


def test_old_style_under_transforms_reads_whether_a_level_differentiates():
    w = torch.tensor(3.0)

    def f(w):
        return Refuses.apply(X, w).sum()

    def operator(w):
        return funcaot.custom_function_call(Refuses, X, w).sum()

    compiled = funcaot.compile(f, backend="eager")
    for called in (operator, compiled, lambda w: compiled(w) * 1):
        assert torch.equal(grad(called)(w), X.sum())
        assert torch.equal(vmap(grad(called))(torch.stack([w, w])), X.sum().expand(2))
    assert torch.equal(jvp(operator, (w,), (w,))[1], X.sum() * 3)
    for ask in (lambda f: grad(f)(X), lambda f: vjp(f, X), lambda f: jvp(f, (X,), (X,))):
        with pytest.raises(RuntimeError, match="no gradient with respect to x"):
            ask(lambda x: funcaot.custom_function_call(Refuses, x, w).sum())


class ReadsThenNumpy(torch.autograd.Function):
    """Runs on real values inside a compiled function, and reads there too."""

    @staticmethod
    def forward(ctx, x):
        ctx.scale = 3.0 if x.requires_grad else 1.0
        return torch.from_numpy(x.detach().numpy() * ctx.scale)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale


def test_where_forward_runs_on_real_values():
    def f(x):
        return ReadsThenNumpy.apply(x * 2).sum()

    compiled = funcaot.compile(f, backend="eager")
    for _ in range(3):
        for make in (lambda: X.clone(), lambda: X.clone().requires_grad_()):
            x, y = make(), make()
            expected, found = f(x), compiled(y)
            torch.testing.assert_close(found, expected)
            if x.requires_grad:
                expected.backward()
                found.backward()
                torch.testing.assert_close(y.grad, x.grad)
