"""Signatures of Functions, what they return, and random numbers, under transforms."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.func import functionalize, grad, jacfwd, jvp, vmap

from funcaot import Function, custom_function_call

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)
T = torch.linspace(0.3, 2.0, 6, dtype=torch.float64).reshape(2, 3)


def close(actual, expected):
    torch.testing.assert_close(actual, expected)


class Sin(Function):
    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def f(x):
    return Sin.apply(x * 2)


def plain(x):
    return (x * 2).sin()


class Everything(Function):
    """None and non-tensor inputs and outputs, defaults, integers, a constant output."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, scale=2.0, bias=None, names=("a",)):
        y = x * scale
        return y, None, names, (x > 0).long(), y.detach() * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        assert len(inputs) == 4
        ctx.scale = inputs[1]
        ctx.mark_non_differentiable(output[3], output[4])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, g_none, g_names, g_int, g_constant):
        assert g_none is None and g_names is None and g_int is None and g_constant is None
        assert ctx.needs_input_grad[1:] == (False, False, False)
        return None if g is None else g * ctx.scale, None, None, None


class TestSignatures:
    @pytest.mark.parametrize(
        "transform",
        [
            lambda h: h,
            vmap,
            lambda h: grad(lambda x: h(x).sum()),
            lambda h: vmap(grad(lambda x: h(x).sum())),
            lambda h: lambda x: jvp(h, (x,), (x,)),
            lambda h: functionalize(vmap(jacfwd(h))),
        ],
    )
    def test_defaults_none_and_opaque_values(self, transform):
        def h(x):
            y, nothing, names, signs, constant = Everything.apply(x, 3.0)
            assert nothing is None
            assert names == ("a",)
            assert signs.dtype == torch.int64
            return y + constant.detach() * 0

        close(transform(h)(X), transform(lambda x: x * 3.0)(X))

    def test_unused_output_gives_no_gradient(self):
        leaf = X.clone().requires_grad_()
        y, _, _, _, constant = Everything.apply(leaf)
        assert not constant.requires_grad
        (g,) = torch.autograd.grad(y.sum(), leaf)
        close(g, torch.full_like(X, 2.0))

    def test_keywords(self):
        close(Everything.apply(X, names=(1,), scale=5.0)[0], X * 5)
        assert Everything.apply(X, names=(1,))[2] == (1,)

    def test_keyword_only_constants(self):
        class Scale(Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x, *, by):
                return x * by

            @staticmethod
            def setup_context(ctx, inputs, output):
                assert len(inputs) == 1

            @staticmethod
            def backward(ctx, g):
                return g * 7

        close(vmap(grad(lambda x: Scale.apply(x, by=3.0).sum()))(X), torch.full_like(X, 7.0))
        close(Scale.apply(X, by=3.0), X * 3)

    def test_needs_input_grad(self):
        seen = []

        class Product(Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x, y):
                return x * y

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx, g):
                seen.append(ctx.needs_input_grad)
                x, y = ctx.saved_tensors
                return g * y, g * x

        grad(lambda x: Product.apply(x, T).sum())(X)
        vmap(grad(lambda x, t: Product.apply(t, x).sum()))(X, T)
        grad(lambda x, y: Product.apply(x, y).sum(), argnums=(0, 1))(X, T)
        assert all(isinstance(needs, tuple) and any(needs) for needs in seen)
        leaf = X.clone().requires_grad_()
        torch.autograd.grad(Product.apply(leaf, T).sum(), leaf)
        assert seen[-1] == (True, False)

    def test_complex(self):
        class Square(Function):
            generate_vmap_rule = True
            generate_jvp_rule = True

            @staticmethod
            def forward(z):
                return z * z

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(inputs[0])

            @staticmethod
            def backward(ctx, g):
                return 2 * g * ctx.saved_tensors[0].conj()

        z = torch.complex(X, T)
        h, ref = (lambda z: Square.apply(z).abs().sum()), (lambda z: (z * z).abs().sum())
        close(grad(h)(z), grad(ref)(z))
        close(jvp(Square.apply, (z,), (z * 1j,)), jvp(lambda z: z * z, (z,), (z * 1j,)))
        close(vmap(grad(h))(z), vmap(grad(ref))(z))

    @pytest.mark.parametrize("batch", [0, 1])
    def test_empty_and_single_batches(self, batch):
        x = X[:1].expand(batch, 3)
        close(vmap(f)(x), plain(x))
        close(vmap(grad(lambda x: f(x).sum()))(x), vmap(grad(lambda x: plain(x).sum()))(x))
        close(vmap(jacfwd(f))(x), vmap(jacfwd(plain))(x))

    def test_once_differentiable(self):
        class Once(Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x):
                return x.sin()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(inputs[0])

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, g):
                return g * ctx.saved_tensors[0].cos()

        first = grad(lambda x: Once.apply(x).sum())
        close(first(X), X.cos())
        close(vmap(first)(X), X.cos())
        for second in (
            lambda: grad(lambda x: first(x).sum())(X),
            lambda: vmap(grad(lambda x: first(x).sum()))(X),
            lambda: grad(lambda x: vmap(first)(x).sum())(X),
        ):
            with pytest.raises(RuntimeError, match="once_differentiable"):
                second()

    def test_output_returned_twice_and_input_returned_as_is(self):
        class Odd(Function):
            generate_vmap_rule = True
            generate_jvp_rule = True

            @staticmethod
            def forward(x, y):
                z = x * y
                return z, z, y

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(inputs[0], inputs[1].view_as(inputs[1]))

            @staticmethod
            def backward(ctx, g1, g2, g3):
                x, y = ctx.saved_tensors
                return (g1 + g2) * y, (g1 + g2) * x + g3

        def total(x, y):
            a, b, c = Odd.apply(x, y)
            return (a + 2 * b + 3 * c).sum()

        def reference(x, y):
            return (x * y * 3 + 3 * y).sum()

        for transform in (
            lambda h: grad(h, (0, 1)),
            lambda h: vmap(grad(h, (0, 1))),
            lambda h: jacfwd(h, (0, 1)),
            lambda h: vmap(jacfwd(h, (0, 1))),
        ):
            close(transform(total)(X, T), transform(reference)(X, T))


class Same(Function):
    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 7 * g


def test_only_output_is_an_input_that_is_not_dirty():
    close(vmap(Same.apply)(X), X)
    close(vmap(grad(lambda x: Same.apply(x).sum()))(X), torch.full_like(X, 7.0))
    close(grad(lambda x: vmap(Same.apply)(x).sum())(X), torch.full_like(X, 7.0))
    close(functionalize(grad(lambda x: vmap(Same.apply)(x).sum()))(X), torch.full_like(X, 7.0))
    close(jvp(vmap(Same.apply), (X,), (X,))[1], 7 * X)


class Noise(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        noise = torch.rand_like(x)
        return x * noise, noise

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.saved_tensors[0]


class TestRandomness:
    def test_modes(self):
        x = torch.ones(4, 3)
        same = vmap(lambda x: Noise.apply(x)[0], randomness="same")(x)
        different = vmap(lambda x: Noise.apply(x)[0], randomness="different")(x)
        assert same.unique().numel() == 3
        assert different.unique().numel() == 12
        with pytest.raises(RuntimeError, match="randomness"):
            vmap(lambda x: Noise.apply(x)[0])(x)

    def test_backward_sees_the_numbers_of_forward(self):
        def both(x):
            return grad(lambda x: Noise.apply(x)[0].sum(), has_aux=False)(x)

        torch.manual_seed(0)
        g = vmap(both, randomness="different")(torch.ones(4, 3))
        torch.manual_seed(0)
        close(g, vmap(lambda x: Noise.apply(x)[0], randomness="different")(torch.ones(4, 3)))


class NumpySin(Function):
    generate_vmap_rule = True
    vmap_by_loop = True

    @staticmethod
    def forward(x):
        return torch.from_numpy(x.detach().numpy().copy()).sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(ctx.saved_tensors[0].detach().numpy().copy()).cos()


def test_vmap_by_loop():
    close(vmap(NumpySin.apply)(X), X.sin())
    close(vmap(vmap(NumpySin.apply))(X), X.sin())
    close(grad(lambda x: vmap(NumpySin.apply)(x).sum())(X), X.cos())
    close(vmap(grad(lambda x: NumpySin.apply(x).sum()))(X), X.cos())


def _renamed(forward):
    @functools.wraps(forward)
    def wrapper(ctx, x, factor=1):
        return forward(ctx, x, factor)

    return wrapper


class Wrapped(torch.autograd.Function):
    @staticmethod
    @_renamed
    def forward(ctx, x, multiplier=1):
        ctx.factor = multiplier
        return x * multiplier

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


def test_keywords_are_those_of_the_code_that_runs():
    """As torch reads them: a decorator's own names count, not those of what it wraps."""
    x = X.clone().requires_grad_()
    for apply in (Wrapped.apply, lambda *a, **k: custom_function_call(Wrapped, *a, **k)):
        result = apply(x, factor=3)
        close(result, 3 * x)
        close(torch.autograd.grad(result.sum(), x)[0], torch.full_like(X, 3))
