"""Plain functions with a rule of their own: ``custom_vjp`` and ``custom_jvp``."""

from __future__ import annotations

import torch

from funcaot.functions.custom_jvp import custom_jvp
from funcaot.functions.custom_vjp import custom_vjp
from funcaot.testing.records import Sample, opinfo
from funcaot.testing.samples import binary, from_maker, unary


@custom_vjp
def stable_softplus(x):
    """``log(1 + exp(x))``, whose rule does not overflow."""
    return torch.log1p(torch.exp(x))


stable_softplus.defvjp(
    lambda x: (torch.log1p(torch.exp(x)), x),
    lambda x, cotangent: (cotangent * torch.sigmoid(x),),
)


@custom_vjp
def weighted_tree(tree):
    """A dictionary of tensors in, a dictionary out."""
    return {"product": tree["x"] * tree["y"], "sum": tree["x"] + tree["y"]}


def weighted_tree_bwd(residuals, cotangent):
    """Cotangents come and go as the trees of the output and of the arguments."""
    x, y = residuals
    product, total = cotangent["product"], cotangent["sum"]
    return ({"x": product * y + total, "y": product * x + total},)


weighted_tree.defvjp(
    lambda tree: (
        {"product": tree["x"] * tree["y"], "sum": tree["x"] + tree["y"]},
        (tree["x"], tree["y"]),
    ),
    weighted_tree_bwd,
)


def power(exponent, x):
    """The exponent comes first and has no derivative."""
    return x**exponent


power = custom_vjp(power, nondiff_argnums=(0,))
power.defvjp(
    lambda exponent, x: (x**exponent, x),
    lambda exponent, x, cotangent: (cotangent * exponent * x ** (exponent - 1),),
)


@custom_vjp
def straight_through_sign(x):
    """An estimator: the sign forward, the identity backward."""
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


straight_through_sign.defvjp(
    lambda x: (torch.where(x >= 0, 1.0, -1.0).to(x.dtype), None),
    lambda _, cotangent: (cotangent,),
)


@custom_jvp
def sine_times(x, y):
    """Only a forward rule, of two arguments."""
    return torch.sin(x) * y


@sine_times.defjvp
def sine_times_jvp(primals, tangents):
    """The product rule."""
    x, y = primals
    tangent_x, tangent_y = tangents
    return torch.sin(x) * y, torch.cos(x) * y * tangent_x + torch.sin(x) * tangent_y


@custom_jvp
def cube(x):
    """A rule that calls the function itself."""
    return x**3


@cube.defjvp
def cube_jvp(primals, tangents):
    """The value is asked of the function again."""
    (x,) = primals
    (tangent,) = tangents
    return cube(x), 3 * x * x * tangent


def on_tree(x, y):
    """Packs the arguments into the tree and unpacks the result."""
    result = weighted_tree({"x": x, "y": y})
    return result["product"], result["sum"]


VJP, JVP = ("custom_vjp",), ("custom_jvp",)

INFOS = (
    opinfo(
        stable_softplus,
        unary(),
        name="CustomVjpSoftplus",
        ref=torch.nn.functional.softplus,
        features=(*VJP, "stable formula"),
    ),
    opinfo(
        on_tree,
        binary(),
        name="CustomVjpTree",
        ref=lambda x, y: (x * y, x + y),
        features=(*VJP, "pytrees"),
    ),
    opinfo(
        power,
        from_maker(lambda make: [Sample(3, (make(2, 3, low=0.5, high=2.0),), name="matrix")]),
        name="CustomVjpPower",
        ref=lambda exponent, x: x**exponent,
        features=(*VJP, "nondiff_argnums"),
    ),
    opinfo(
        straight_through_sign,
        unary(),
        name="CustomVjpStraightThrough",
        ref=lambda x: torch.where(x >= 0, 1.0, -1.0).to(x.dtype) + x - x.detach(),
        true_derivative=False,
        features=(*VJP, "straight-through"),
    ),
    opinfo(
        sine_times,
        binary(),
        name="CustomJvpSineTimes",
        ref=lambda x, y: torch.sin(x) * y,
        features=JVP,
    ),
    opinfo(
        cube,
        unary(),
        name="CustomJvpCube",
        ref=lambda x: x**3,
        features=(*JVP, "recursive rule"),
    ),
)
