"""What rules may return and be given, against eager formulas."""

import functools
import gc
import types
import weakref

import pytest
import torch
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import funcaot
from funcaot.errors import ArgumentError, MissingRuleError, RuleError, UnsupportedError

X, XS = torch.tensor(0.4).double(), torch.tensor([0.4, 1.1, -0.2]).double()
close = torch.testing.assert_close


def clip(bound=1.0):
    f = funcaot.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, c: (c.clamp(-bound, bound),))
    return f


def identity_jvp():
    f = funcaot.custom_jvp(lambda x: x)
    f.defjvp(lambda p, t: (p[0], 3 * t[0]))
    return f


def compiled(f):
    return funcaot.compile(f, backend="eager")


def test_clipped_identity():
    f = clip()
    assert grad(lambda x: 5 * f(x))(X) == 1
    assert vjp(f, X)[1](X * 10) == (1,)
    close(vmap(grad(lambda x: x * f(x)))(XS), XS + XS.clamp(-1, 1))
    close(grad(lambda x: (5 * vmap(f)(x)).sum())(XS), torch.ones_like(XS))
    assert compiled(grad(lambda x: 5 * f(x)))(X) == 1
    x = X.clone().requires_grad_()
    assert torch.autograd.grad(5 * f(x), x) == (1,)


def test_identity_forward():
    f = identity_jvp()
    close(jvp(f, (X,), (X,)), (X, 3 * X))
    close(jvp(vmap(f), (XS,), (XS,)), (XS, 3 * XS))
    assert grad(f)(X) == 3
    close(compiled(lambda x: jvp(f, (x,), (x,)))(X), (X, 3 * X))


def test_one_tensor_returned_twice():
    f = funcaot.custom_vjp(lambda x, y: (x, x, y))
    f.defvjp(lambda x, y: ((x, x, y), None), lambda _, c: (2 * c[0] + 3 * c[1], 5 * c[2]))
    assert grad(lambda x, y: sum(f(x, y)), (0, 1))(X, X) == (5, 5)
    double = funcaot.custom_jvp(lambda x: (y := x.sin(), y))
    double.defjvp(lambda p, t: (double(*p), (2 * t[0], 3 * t[0])))
    assert grad(lambda x: sum(double(x)))(X) == 5
    close(jvp(double, (X,), (X,))[1], (2 * X, 3 * X))


@funcaot.custom_jvp
def third(x):
    return x / 3


third.defjvp(lambda p, t: (third(*p), third(*t)))


@pytest.mark.parametrize("wrap", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_rule_that_applies_the_function_to_its_tangent(wrap):
    f = wrap(lambda x: third(x) ** 2)
    close(grad(f)(X), 2 * X / 9)
    close(grad(grad(f))(X), torch.full_like(X, 2 / 9))
    close(jvp(f, (X,), (X,))[1], 2 * X * X / 9)
    close(vmap(grad(f))(XS), 2 * XS / 9)
    close(hessian(f)(X), torch.full_like(X, 2 / 9))
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    close(torch.autograd.grad(first, x)[0], torch.full_like(X, 2 / 9))


def test_two_rules_that_apply_each_other():
    f, g = funcaot.custom_jvp(lambda x: 2 * x), funcaot.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda p, t: (f(*p), g(*t)))
    g.defjvp(lambda p, t: (g(*p), f(*t)))
    assert grad(f)(X) == 2 and vmap(grad(g))(XS).tolist() == [2, 2, 2]


def test_linear_call():
    def solve(a, b):
        return b / a["a"]

    def f(a, b):
        return funcaot.linear_call(solve, lambda a, c: 7 * c / a["a"], {"a": a}, b)

    a = X + 1
    assert f(a, X) == X / a
    close(grad(f, 1)(a, X), 7 / a)
    close(grad(f, 0)(a, X), -X / a**2)
    close(jvp(lambda b: f(a, b), (X,), (X,))[1], X / a)
    close(grad(grad(f, 1), 0)(a, X), -7 / a**2)
    close(vmap(grad(f, 1), (None, 0))(a, XS), (7 / a).expand(3))
    close(compiled(grad(f, 1))(a, X), 7 / a)
    # the transpose of the transpose is the function
    (pull,) = vjp(lambda b: f(a, b), X)[1:]
    close(vjp(lambda c: pull(c)[0], X)[1](X)[0], X / a)


def test_a_tangent_of_none_is_zero():
    f = funcaot.custom_jvp(lambda x: (x * 2, x.sin()))
    f.defjvp(lambda p, t: (f(*p), (None, 3 * t[0])))
    for call in (f, compiled(f)):
        close(jvp(call, (X,), (X,))[1], (0 * X, 3 * X))
        assert grad(lambda x: call(x)[0])(X) == 0  # noqa: B023
        assert grad(lambda x: sum(call(x)))(X) == 3  # noqa: B023
    g = funcaot.custom_jvp(lambda x: x * 2)
    g.defjvp(lambda p, t: (g(*p), None))
    assert jvp(g, (X,), (X,))[1] == 0
    assert grad(g)(X) == 0


def test_a_batched_tangent_of_an_unbatched_output():
    f = funcaot.custom_jvp(lambda x: torch.zeros_like(X))
    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
    close(jvp(vmap(f), (XS,), (XS,)), (0 * XS, 2 * XS))
    close(grad(lambda x: vmap(f)(x).sum())(XS), torch.full_like(XS, 2))
    close(vmap(grad(f))(XS), torch.full_like(XS, 2))


@pytest.mark.parametrize(
    "cotangents",
    [
        lambda c: [2 * c, {"a": (3 * c, None)}],
        lambda c: (2 * c, {"a": (3 * c, 0.0)}),
        lambda c: (2 * c, {"a": (3 * c, funcaot.SymbolicZero.like(c))}),
    ],
)
def test_what_bwd_may_return(cotangents):
    f = funcaot.custom_vjp(lambda x, d: x * d["a"][0] * d["a"][1])
    f.defvjp(lambda x, d: (f(x, d), None), lambda _, c: cotangents(c))
    d = {"a": (X, X)}
    assert grad(f, (0, 1))(X, d) == (2, {"a": (3, 0)})
    assert compiled(grad(f, (0, 1)))(X, d) == (2, {"a": (3, 0)})


def test_none_for_a_subtree_and_numbers_for_gradients():
    f = funcaot.custom_vjp(lambda x, d: x * d["a"][0] * d["a"][1])
    f.defvjp(lambda x, d: (f(x, d), None), lambda _, c: (4.0, {"a": None}))
    assert grad(f, (0, 1))(X, {"a": (X, X)}) == (4, {"a": (0, 0)})


@pytest.mark.parametrize(
    "rule",
    [
        lambda p, t: ((p[0], p[0]), (t[0], t[0])),
        lambda p, t: (p[0].expand(3), t[0]),
        lambda p, t: (p[0], t[0].expand(3)),
        lambda p, t: ((p[0],), (t[0],)),
    ],
    ids=["structure", "shape", "shape of the tangent", "a tuple of one"],
)
def test_a_rule_that_returns_another_output_is_an_error(rule):
    f = funcaot.custom_jvp(lambda x: x * 2)
    f.defjvp(rule)
    for ask in (lambda: jvp(f, (X,), (X,)), lambda: grad(f)(X), lambda: vmap(grad(f))(XS)):
        with pytest.raises(RuleError):
            ask()


@pytest.mark.parametrize(
    "changed",
    [lambda y: (y,), lambda y: y[None], lambda y: {"y": y}],
    ids=["tuple", "shape", "dict"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_a_fwd_that_returns_another_output_is_an_error(changed, wrap):
    f = funcaot.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (changed(x * 2), None), lambda _, c: (2 * X,))
    total = wrap(lambda x: sum(leaf.sum() for leaf in torch.utils._pytree.tree_leaves(f(x))))
    assert grad(total)(X) == 2 * X  # The function never ran.
    f(X)
    with pytest.raises(RuleError, match=r"fwd of <lambda> \(custom_vjp\)"):
        wrap(grad(lambda x: total(x)))(X)


def test_what_a_function_reads_may_change_between_its_rule_and_itself():
    size = 2
    f = funcaot.custom_vjp(lambda x: x.expand(size))
    f.defvjp(lambda x: (f(x), None), lambda _, c: (c.sum(),))
    for size in (2, 3):
        assert grad(lambda x: f(x).sum())(X) == size
        f(X)
    for size in (2, 3):
        assert grad(lambda x: f(x).sum())(X) == size


def test_arguments_are_not_asked_for_a_hash_nor_kept():
    class Minds:
        def __hash__(self):
            raise ValueError

    f = funcaot.custom_vjp(lambda x, option: x * 2, nondiff_argnums=(1,))
    f.defvjp(lambda x, option: (f(x, option), None), lambda option, _, c: (2 * c,))
    option = Minds()
    assert f(X, option) == 2 * X
    assert grad(f)(X, option) == 2
    gone = weakref.ref(option)
    del option
    gc.collect()
    assert gone() is None


def test_a_symbolic_zero_of_another_shape_is_an_error():
    f = funcaot.custom_vjp(lambda x, y: (x, y))
    f.defvjp(lambda x, y: ((x.value, y.value), None), lambda _, c: c[::-1], symbolic_zeros=True)
    with pytest.raises(RuleError, match="return None"):
        grad(lambda x, y: f(x, y)[1].sum())(torch.ones(1), torch.ones(2))


def test_partial_with_keywords():
    f = funcaot.custom_jvp(functools.partial(lambda x, y, a: x + y * a, a=0.5))
    f.defjvp(lambda p, t: (f(*p), t[0] + 7 * t[1]))
    assert grad(f, (0, 1))(X, X) == (1, 7)
    assert f(X, X) == X + X * 0.5
    with pytest.raises(ArgumentError, match="keyword"):
        f(X, X, a=2.0)


def test_numbers_are_differentiable_arguments():
    f = funcaot.custom_jvp(lambda x, c=1.0, n=2: c * x**n)
    seen = []

    @f.defjvp
    def rule(primals, tangents):
        (x, c, n), (dx, dc, dn) = primals, tangents
        seen.append((dc, dn))
        return f(x, c, n), c * n * x ** (n - 1) * dx + dc * x**n

    assert grad(lambda x: f(x, c=3.0))(X) == 6 * X
    assert seen[-1] == (0.0, None)
    g = funcaot.custom_vjp(lambda x, c: x * c)
    g.defvjp(lambda x, c: (g(x, c), (x, c)), lambda r, c: (c * r[1], (c * r[0]).item()))
    assert grad(g)(X, 3.0) == 3


def test_numbers_as_outputs():
    f = funcaot.custom_jvp(lambda x: (x * 2, 3.0, "name"))
    f.defjvp(lambda p, t: (f(*p), (5 * t[0], 0.0, None)))
    assert grad(lambda x: f(x)[0])(X) == 5
    g = funcaot.custom_vjp(lambda x: (x * 2, 3.0))
    g.defvjp(lambda x: (g(x), None), lambda _, c: (5 * c[0] + c[1],))
    assert grad(lambda x: g(x)[0])(X) == 5


@pytest.mark.parametrize("decorator", [funcaot.custom_jvp, funcaot.custom_vjp])
def test_nondiff_argnames(decorator):
    f = decorator(lambda g, x, n: g(x) ** n, nondiff_argnums=(0,), nondiff_argnames=("n",))
    if decorator is funcaot.custom_jvp:
        f.defjvp(lambda g, n, p, t: (f(g, p[0], n), 10 * n * t[0]))
    else:
        f.defvjp(lambda g, x, n: (f(g, x, n), None), lambda g, n, r, c: (10 * n * c,))
    assert grad(lambda x: f(torch.sin, x, 3))(X) == 30
    with pytest.raises(ArgumentError, match="nope"):
        decorator(lambda x: x, nondiff_argnames=("nope",))


def test_without_a_rule():
    for decorator in (funcaot.custom_jvp, funcaot.custom_vjp, funcaot.custom_vmap):
        with pytest.raises(MissingRuleError, match="rule"):
            decorator(lambda x: x)(X)


def test_builtins_can_be_decorated():
    f = funcaot.custom_jvp(torch.sin)
    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
    assert grad(f)(X) == 2


def product(seen):
    f = funcaot.custom_vjp(lambda x, y: (x * y, x + y))

    def fwd(x, y):
        seen.append((x.perturbed, y.perturbed))
        return f(x.value, y.value), (x.value, y.value)

    def bwd(res, c):
        seen.append(tuple(type(part) is funcaot.SymbolicZero for part in c))
        first, second = (
            part.instantiate() if type(part) is funcaot.SymbolicZero else part for part in c
        )
        return first * res[1] + second, first * res[0] + second

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


@pytest.mark.parametrize("around", [lambda f: f, vmap], ids=["alone", "vmap"])
def test_perturbed_arguments_and_symbolic_cotangents(around):
    seen = []
    f = around(product(seen))
    x = XS
    close(grad(lambda x: f(x, XS)[0].sum())(x), XS)
    assert seen == [(True, False), (False, True)]
    seen.clear()
    close(grad(lambda y: f(XS, y)[1].sum())(x), torch.ones_like(XS))
    assert seen == [(False, True), (True, False)]


def test_symbolic_tangents():
    f = funcaot.custom_jvp(lambda x, y, n: x * y)
    seen = []

    def rule(primals, tangents):
        seen.append([type(t) is funcaot.SymbolicZero for t in tangents])
        x, y = primals[:2]
        parts = [
            t * other
            for t, other in zip(tangents, (y, x), strict=False)
            if type(t) is not funcaot.SymbolicZero
        ]
        return f(*primals), sum(parts)

    f.defjvp(rule, symbolic_zeros=True)
    close(jvp(lambda x: f(x, X, 2.0), (X + 1,), (X,))[1], X * X)
    assert seen == [[False, True, True]]
    close(grad(f, 1)(X, X, 2.0), X)
    assert seen[-1] == [True, False, True]
    close(jacfwd(f, (0, 1))(X, X + 1, 2.0), (X + 1, X))
    f.defjvp(lambda p, t: (f(*p), t[1]), symbolic_zeros=True)
    assert jvp(lambda x: f(x, X, 2.0), (X,), (X,))[1] == 0
    close(jvp(lambda x: vmap(f, (0, None, None))(x, X, 2.0), (XS,), (XS,))[1], 0 * XS)


def test_zero_from_primal():
    zero = funcaot.zero_from_primal((X, 2.0, 3), symbolic_zeros=True)
    assert [type(z) for z in zero] == [funcaot.SymbolicZero, funcaot.SymbolicZero, type(None)]
    assert zero[0].instantiate() == 0 and zero[0].dtype == X.dtype and zero[0].ndim == 0


def test_a_function_as_a_residual_to_second_order():
    f = funcaot.custom_vjp(lambda x: x**3)
    f.defvjp(lambda x: (f(x), lambda c: c * 3 * x**2), lambda pull, c: (pull(c),))
    for call in (f, compiled(f)):
        close(grad(grad(call))(X), 6 * X)
        close(grad(grad(grad(call)))(X), torch.full_like(X, 6))
        close(vmap(grad(grad(call)))(XS), 6 * XS)


def test_a_pullback_as_a_residual():
    f = funcaot.custom_vjp(lambda x: x**3)
    f.defvjp(lambda x: vjp(lambda x: x**3, x), lambda pull, c: pull(c))
    for call in (f, compiled(f)):
        close(vjp(call, X)[1](X), (3 * X**3,))
        close(grad(grad(call))(X), 6 * X)
        close(vmap(grad(grad(call)))(XS), 6 * XS)


def test_fwd_that_draws_and_would_run_again_is_refused():
    f = funcaot.custom_vjp(lambda x: x * torch.rand(()))
    f.defvjp(lambda x: vjp(lambda x: x * torch.rand(()), x), lambda pull, c: pull(c))
    with pytest.raises(UnsupportedError, match="draws"):
        grad(f)(X)
    with pytest.raises(UnsupportedError, match="draws"):
        grad(funcaot.checkpoint(lambda x: x * torch.rand(())))(X)


def test_closing_over_a_pullback_of_what_is_differentiated_is_refused():
    def f(x):
        pull = vjp(torch.sin, x)[1]
        g = funcaot.custom_jvp(lambda y: pull(y)[0])
        g.defjvp(lambda p, t: (g(*p), t[0]))
        return g(x)

    with pytest.raises(UnsupportedError, match=r"pull.* is a function that torch\.func\.vjp"):
        grad(f)(X)


def test_custom_gradient():
    f = funcaot.custom_gradient(lambda x: (x**2, lambda c: c * x))
    g = funcaot.custom_gradient(lambda x, y: (x * y, lambda c: (c * 2 * y, c * 3 * x)))
    for wrap in (lambda f: f, compiled):
        close(wrap(grad(f))(X), X)
        close(wrap(grad(grad(f)))(X), torch.ones_like(X))
        close(wrap(grad(g, (0, 1)))(X, X + 1), (2 * (X + 1), 3 * X))
        close(wrap(vmap(grad(f)))(XS), XS)


@pytest.mark.parametrize("wrap", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_closure_convert(wrap):
    inner = funcaot.custom_vjp(lambda fn, x, *held: fn(x, *held).cos(), nondiff_argnums=(0,))
    inner.defvjp(
        lambda fn, x, *held: (inner(fn, x, *held), (x, held)),
        lambda fn, res, c: (17 * res[0], *[42 * held for held in res[1]]),
    )

    def solve(c, x):
        closed, held = funcaot.closure_convert(lambda x: ((x - c) ** 2).sum(), x)
        return inner(closed, x, *held)

    close(wrap(grad(solve, (0, 1)))(X, X + 1), (42 * X, 17 * (X + 1)))


def test_closure_convert_checks_the_structure():
    closed, held = funcaot.closure_convert(lambda x: x * 2, X)
    assert held == [] and closed(X) == 2 * X
    with pytest.raises(ArgumentError, match="closure_convert"):
        closed((X,))


def test_checkpoint_around_rules():
    f = funcaot.custom_vjp(torch.sin)
    f.defvjp(lambda x: (f(x), x.cos()), lambda cos, c: (2 * c * cos,))
    g = funcaot.checkpoint(lambda x: f(x) * x)

    def plain(x):
        return f(x) * x

    for transform in (grad, jacfwd, jacrev, lambda f: grad(grad(f)), hessian):
        close(transform(g)(X), transform(plain)(X))
    close(grad(g)(X), 2 * X.cos() * X + X.sin())
    close(vmap(grad(g))(XS), 2 * XS.cos() * XS + XS.sin())
    x = X.clone().requires_grad_()
    close(torch.autograd.grad(g(x), x)[0], 2 * X.cos() * X + X.sin())
    close(compiled(grad(g))(X), 2 * X.cos() * X + X.sin())


def test_optimize_remat_takes_the_output_of_the_function():
    f = funcaot.custom_vjp(torch.tan)
    f.defvjp(lambda x: (x.sin(), x), lambda x, c: (c * x.cos(),), optimize_remat=True)
    for call in (f, funcaot.checkpoint(f)):
        out, pull = vjp(call, X)
        close(out, X.tan())
        close(pull(X), (X * X.cos(),))
        close(grad(grad(call))(X), -X.sin())


def test_functionalize_closures():
    def f(w, x):
        g = funcaot.custom_vjp(lambda x: w * x)
        g.defvjp(lambda x: (g(x), w), lambda w, c: (w * c,))
        return g(x)

    close(functionalize(grad(f, (0, 1)))(X, X + 1), (X + 1, X))


class Shared:
    """Holds a tensor for everybody."""

    w = None


def of_class(w):
    Shared.w = w
    return lambda: Shared.w


def of_instance(w):
    Shared.w, held = w, Shared()
    return lambda: held.w


def of_module(w):
    held = types.ModuleType("held")
    held.w = w
    return lambda: held.w


def of_iterator(w):
    held = iter([w] * 9)
    return lambda: next(held)


def of_generator(w):
    held = (w for _ in range(9))
    return lambda: next(held)


@pytest.mark.parametrize("hold", [of_class, of_instance, of_module, of_iterator, of_generator])
def test_what_has_no_copy_is_refused_by_name(hold):
    def f(w, x):
        get = hold(w)
        g = funcaot.custom_vjp(lambda x: get() * x)
        g.defvjp(lambda x: (g(x), None), lambda _, c: (c,))
        return g(x)

    assert grad(lambda x: f(X, x))(X) == 1
    for ask in (
        lambda: grad(f, (0, 1))(X, X),
        lambda: jvp(f, (X, X), (X, X)),
        lambda: grad(lambda x: vmap(f, (0, None))(XS, x).sum())(X),
    ):
        with pytest.raises(
            UnsupportedError, match=r"(Shared\.w|held\.w|held|w), which a custom rule"
        ):
            ask()
    Shared.w = None
