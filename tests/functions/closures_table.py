"""Functions that hold a tensor in some place and have a rule of some kind; the tests call these.

``value`` is what each computes. The rules are true, so plain torch is the oracle to every order.
"""

import functools

import torch
from torch.func import vjp

import funcaot


def value(w, x):
    return torch.sin(x * w) + w * w * x


def by_x(w, x):
    return w * torch.cos(x * w) + w * w


class Held:
    def __init__(self, w):
        self.w = w

    def method(self, x):
        return value(self.w, x)

    def slope(self, x):
        return by_x(self.w, x)


class Slotted:
    __slots__ = ("w",)


class Layer(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.inner = torch.nn.Module()
        self.inner.register_buffer("w", w)


def cell(w):
    return lambda: w


def default(w):
    def get(w=w):
        return w

    return get


def keyword(w):
    def get(*, w=w):
        return w

    return get


def partial(w):
    return functools.partial(lambda w: w, w)


def partial_keyword(w):
    return functools.partial(lambda w: w, w=w)


def listed(w):
    held = [None, (w, {"w": w})]
    return lambda: held[1][1]["w"]


def attribute(w):
    held = Held(w)
    return lambda: held.w


def slot(w):
    held = Slotted()
    held.w = w
    return lambda: held.w


def module(w):
    held = Layer(w)
    return lambda: held.inner.w


def nested(w):
    def outer():
        def inner():
            return w

        return inner()

    return outer


def mutual(w):
    """Two functions that hold each other."""

    def even(n=2):
        return w if n == 0 else odd(n - 1)

    def odd(n):
        return even(n - 1)

    return even


def global_name(w):
    globals()["HELD"] = w
    return read_global


def read_global():
    return HELD  # noqa: F821


HOLDERS = {
    holder.__name__: holder
    for holder in (
        *(cell, default, keyword, partial, partial_keyword, listed, attribute, slot, module),
        *(nested, mutual, global_name),
    )
}


def jvp_rule(get):
    f = funcaot.custom_jvp(lambda x: value(get(), x))
    f.defjvp(lambda p, t: (f(*p), by_x(get(), p[0]) * t[0]))
    return f


def jvp_symbolic(get):
    f = funcaot.custom_jvp(lambda x: value(get(), x))
    f.defjvp(lambda p, t: (f(*p), by_x(get(), p[0]) * t[0]), symbolic_zeros=True)
    return f


def jvps_rule(get):
    f = funcaot.custom_jvp(lambda x: value(get(), x))
    f.defjvps(lambda t, out, x: by_x(get(), x) * t)
    return f


def vjp_saved(get):
    f = funcaot.custom_vjp(lambda x: value(get(), x))
    f.defvjp(lambda x: (f(x), (get(), x)), lambda res, c: (by_x(*res) * c,))
    return f


def vjp_closed(get):
    """Only ``bwd`` reads the tensor."""
    f = funcaot.custom_vjp(lambda x: value(get(), x))
    f.defvjp(lambda x: (f(x), x), lambda x, c: (by_x(get(), x) * c,))
    return f


def vjp_symbolic(get):
    f = funcaot.custom_vjp(lambda x: value(get(), x))
    f.defvjp(
        lambda x: (f(x.value), x.value),
        lambda x, c: (by_x(get(), x) * c,),
        symbolic_zeros=True,
    )
    return f


def vjp_remat(get):
    f = funcaot.custom_vjp(lambda x: value(get(), x))
    f.defvjp(lambda x: (f(x), by_x(get(), x)), lambda slope, c: (slope * c,), optimize_remat=True)
    return f


def residual_function(get):
    f = funcaot.custom_vjp(lambda x: value(get(), x))

    def fwd(x):
        w, slope = get(), by_x(get(), x)
        return f(x), lambda c: slope * c + 0 * w

    f.defvjp(fwd, lambda pull, c: (pull(c),))
    return f


def residual_pullback(get):
    f = funcaot.custom_vjp(lambda x: value(get(), x))
    f.defvjp(lambda x: vjp(lambda x: value(get(), x), x), lambda pull, c: pull(c))
    return f


def gradient_rule(get):
    return funcaot.custom_gradient(lambda x: (value(get(), x), lambda c: by_x(get(), x) * c))


def vmap_rule(get):
    f = funcaot.custom_vmap(lambda x: value(get(), x))
    f.def_vmap(lambda size, flags, x: (value(get(), x), flags[0]))
    return f


def checkpointed(get):
    return funcaot.checkpoint(lambda x: value(get(), x))


def rule_in_rule(get):
    inner = jvp_rule(get)
    f = funcaot.custom_vjp(lambda x: inner(x))
    f.defvjp(lambda x: (inner(x), x), lambda x, c: (by_x(get(), x) * c,))
    return f


def function_argument(get):
    """The tensor is in another argument, which is a function."""
    apply = funcaot.custom_jvp(lambda g, x: g(x), nondiff_argnames=("g",))
    apply.defjvp(lambda g, p, t: (apply(g, *p), by_x(get(), p[0]) * t[0]))
    return lambda x: apply(lambda x: value(get(), x), x)


def bound_method(get):
    held = Held(get())
    f = funcaot.custom_jvp(held.method)
    f.defjvp(lambda p, t: (f(*p), held.slope(p[0]) * t[0]))
    return f


def dictionaries(get):
    """Arguments, output and residuals are trees."""

    def tree(d):
        return {"out": (value(get(), d["x"]), d["x"] * 2)}

    f = funcaot.custom_vjp(tree)
    f.defvjp(
        lambda d: (f(d), {"x": [d["x"]]}),
        lambda r, c: ({"x": by_x(get(), r["x"][0]) * c["out"][0] + 2 * c["out"][1]},),
    )
    return lambda x: f({"x": x})["out"][0]


RULES = {
    rule.__name__: rule
    for rule in (
        *(jvp_rule, jvp_symbolic, jvps_rule, vjp_saved, vjp_closed, vjp_symbolic, vjp_remat),
        *(residual_function, residual_pullback, gradient_rule, vmap_rule, checkpointed),
        *(rule_in_rule, function_argument, bound_method, dictionaries),
    )
}


def function_of(rule, holder):
    """``(w, x) -> value``, by a rule for ``x`` of a function that holds ``w``."""
    return lambda w, x: RULES[rule](HOLDERS[holder](w))(x)
