"""Programs on masked tensors, how they are called, and what can be told of what comes out."""

from __future__ import annotations

import functools
import operator

import torch
from torch.masked import MaskedTensor, masked_tensor
from torch.utils import _pytree as pytree

UNARY = (
    *("sin", "exp", "tanh", "sigmoid", "abs", "neg", "sqrt", "square", "floor", "sign", "log1p"),
    *("erf", "isnan", "nan_to_num", "rsqrt", "reciprocal", "logical_not", "angle", "round"),
)
BINARY = ("add", "sub", "mul", "div", "atan2", "maximum", "minimum", "eq", "lt", "fmod", "ge")
REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "argmax",
    "argmin",
    "std",
    "var",
    "norm",
    "all",
)
# Where eager fails to print the tensor that it refuses.
OTHERWISE = {"AttributeError": "TypeError"}
IN_PLACE = ("sin_", "mul_", "neg_", "add_", "abs_", "sigmoid_")


def _written(name, x):
    other = (2,) if name in ("mul_", "add_") else ()
    return getattr(x, name)(*other)


def _write_beside(x, y):
    x.get_data().mul_(2)
    return x * 2


def _write_inside(x, y):
    x._masked_data.mul_(2)
    return x * 2


def _write_mask(x, y):
    x._masked_mask.logical_not_()
    return x * 2


def _branch(x, y):
    return x * 2 if bool(x.get_mask().all()) else x * 3


def _compared(x, y):
    return x + y if torch.equal(x.get_mask(), y.get_mask()) else x.get_data() + y.get_data()


def _gradient_inside(x, y):
    inner = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(inner.sin().sum(), inner)
    return gradient * x


def _named(named, call):
    """A program for each name: ``call(name, x, y)``."""
    return {title: functools.partial(call, name) for title, name in named.items()}


def _titles(names, end):
    return {f"{name} {end}": name for name in names}


PROGRAMS = {
    **_named({f"unary {n}": n for n in UNARY}, lambda n, x, y: getattr(torch, n)(x)),
    **_named(_titles(BINARY, "of both"), lambda n, x, y: getattr(torch, n)(x, y)),
    **_named(_titles(("add", "mul"), "of one"), lambda n, x, y: getattr(torch, n)(x, x * 2)),
    **_named(_titles(REDUCTIONS, "of all"), lambda n, x, y: getattr(x, n)()),
    **_named(_titles(REDUCTIONS, "of rows"), lambda n, x, y: getattr(x, n)(dim=1)),
    **_named(_titles(("sum", "amax", "prod"), "of torch"), lambda n, x, y: getattr(torch, n)(x, 1)),
    **_named(_titles(IN_PLACE, "of an argument"), lambda n, x, y: _written(n, x)),
    **_named(_titles(IN_PLACE, "of a result"), lambda n, x, y: _written(n, x * 1)),
    "a softmax": lambda x, y: torch.softmax(x, -1),
    "a number": lambda x, y: x * 2 + 1,
    "a plain one": lambda x, y: x + torch.ones(3, 4),
    "a plain one first": lambda x, y: torch.ones(3, 4) * x,
    "a product in place": lambda x, y: (x * 1).mul_(y),
    "its data": lambda x, y: x.get_data() * 2,
    "its data as they are": lambda x, y: x.get_data(),
    "its mask": lambda x, y: x.get_mask(),
    "its mask, computed": lambda x, y: ~x.get_mask(),
    "filled": lambda x, y: x.to_tensor(7.0) * 2,
    "made": lambda x, y: masked_tensor(x.get_data() * 2, x.get_mask()),
    "made of a leaf": lambda x, y: (
        masked_tensor(x.get_data().detach(), x.get_mask(), requires_grad=True) * 2
    ),
    "made by values": lambda x, y: MaskedTensor._from_values(x.get_data() * 3, x.get_mask()).sin(),
    "as_masked_tensor": lambda x, y: (
        torch.masked.as_masked_tensor(x.get_data() * 3, y.get_mask()) * 2
    ),
    "other mask": lambda x, y: MaskedTensor._from_values(x.get_data() * 3, ~x.get_mask()).sin(),
    "transposed": lambda x, y: x.transpose(0, 1),
    "t": lambda x, y: x.t(),
    "transposed and dense": lambda x, y: x.transpose(0, 1).contiguous() * 2,
    "itself": lambda x, y: x,
    "itself, dense": lambda x, y: x.contiguous(),
    "a clone": lambda x, y: x.clone(),
    "detached": lambda x, y: x.detach(),
    "both": lambda x, y: (x, x * 2, y),
    "a list": lambda x, y: {"a": [x.sin(), y.get_mask()], "b": x.sum()},
    "where": lambda x, y: torch.where(x.get_data() > 0, x, y),
    "where of one": lambda x, y: torch.where(x.get_mask(), x, x * 2),
    "where of data": lambda x, y: torch.where(x.get_mask(), x.get_data(), y.get_data()),
    "a cat": lambda x, y: torch.cat([x, y]),
    "a row": lambda x, y: x[0],
    "a view": lambda x, y: x.view(-1),
    "a reshape": lambda x, y: x.reshape(2, 6) * 2,
    "an expansion": lambda x, y: x.unsqueeze(0).expand(2, 3, 4),
    "unfold": lambda x, y: x.unfold(1, 2, 1),
    "a cast": lambda x, y: x.to(torch.float64) * 2,
    "half": lambda x, y: x.half(),
    "a chain": lambda x, y: (x.sin() * y).sum(1).mean(),
    "a chain of one": lambda x, y: (x.sin() * x).exp().sum(1).mean(),
    "a norm": lambda x, y: (x - x.mean()) / 2,
    "a power": lambda x, y: x**2,
    "clamped": lambda x, y: x.clamp(min=0.1),
    "relu": lambda x, y: torch.nn.functional.relu(x),
    "less": lambda x, y: x < 0,
    "ones": lambda x, y: torch.ones_like(x) * x,
    "zeros": lambda x, y: torch.zeros_like(x),
    "a product of matrices": lambda x, y: x.get_data() @ y.get_data().t(),
    "matmul": lambda x, y: x @ y.t(),
    "copied": lambda x, y: (x * 1).copy_(y),
    "a size": lambda x, y: x * x.shape[0] + x.numel() + x.stride(0),
    "is contiguous": lambda x, y: x * (2 if x.is_contiguous() else 3),
    "is sparse": lambda x, y: x * (2 if x.is_sparse else 3),
    "a branch": _branch,
    "masks compared": _compared,
    "written beside": _write_beside,
    "written inside": _write_inside,
    "mask written": _write_mask,
    "a gradient inside": _gradient_inside,
    "no grad": lambda x, y: (x * 2, torch.no_grad()(operator.mul)(x, 3)),
    "an item": lambda x, y: x * x.get_data().sum().item(),
    "a Function": lambda x, y: _Twice.apply(x),
    "sparse": lambda x, y: x.to_sparse() * 2,
    "sparse and back": lambda x, y: x.to_sparse().to_dense() * 2,
    "sparse rows": lambda x, y: x.to_sparse_csr(),
    "checkpointed": lambda x, y: torch.utils.checkpoint.checkpoint(
        lambda v: v.sin() * v, x, use_reentrant=False
    ),
    "linear of data": lambda x, y: (
        torch.nn.functional.linear(x.to_tensor(0.0), torch.ones(5, 4)).relu().sum()
    ),
}


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + ctx.saved_tensors[0] * 0


def made(seed, mask, *, grad=True, dtype=torch.float32, layout=None):
    """A masked tensor of random numbers; which of them show is told by ``mask``."""
    numbers = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if mask in ("all", "none"):
        shown = torch.full((3, 4), mask == "all")
    else:
        shown = torch.rand(3, 4, generator=torch.Generator().manual_seed(mask)) > 0.4
        shown[:, 0] = True
    if layout == "sparse":
        shown = shown.to_sparse_coo().coalesce()
        numbers = numbers.sparse_mask(shown)
    if layout == "rows":
        shown = shown.to_sparse_csr()
        numbers = numbers.sparse_mask(shown)
    made = masked_tensor(numbers, shown)
    return made.requires_grad_() if grad else made


class Looks:
    """What can be told of values; objects and memory by when they were met."""

    def __init__(self):
        self.numbers, self.alive = {}, []

    def number(self, key, thing):
        self.alive.append(thing)
        return self.numbers.setdefault(key, len(self.numbers))

    def __call__(self, value, inside=False, counted=False):
        if isinstance(value, (tuple, list)):
            return [type(value).__name__, *map(self, value)]
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if not isinstance(value, torch.Tensor):
            return repr(value)
        told = {"class": type(value).__name__, "shape": tuple(value.shape), "dtype": value.dtype}
        told["layout"] = value.layout
        if value.layout is torch.strided:
            told["stride"] = value.stride()
        if not inside:
            told["object"] = self.number(id(value), value)
            told |= {"leaf": value.is_leaf, "history": value.grad_fn is None}
            told["grad"] = value.requires_grad
            told |= {"version": value._version, "view": value._is_view()} if counted else {}
        if isinstance(value, MaskedTensor):
            told["data"] = self(value._masked_data, True)
            told["mask"] = self(value._masked_mask, True)
        elif value.layout is torch.strided:
            memory = value.untyped_storage()
            told["memory"] = self.number(("memory", memory._cdata), memory)
        return told


def copies(value):
    """The plain tensors inside of what a call gave, as they are now."""
    found = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, MaskedTensor):
            found += copies([leaf._masked_data, leaf._masked_mask])
        elif isinstance(leaf, torch.Tensor):
            plain = leaf.detach()
            found.append(plain.clone() if plain.layout is torch.strided else plain.to_dense())
    return found


def tangent_of(result, tangent):
    """A gradient for a result: plain, of its mask, of another one."""
    if tangent == "plain" or not isinstance(result, MaskedTensor):
        return torch.ones(result.shape, dtype=result.dtype)
    shown = result._masked_mask
    ones = torch.ones_like(result._masked_data)
    if tangent == "its mask":
        return masked_tensor(ones, shown)
    return masked_tensor(ones, ~shown if shown.layout is torch.strided else shown)


def play(function, calls, tangent, order=2):
    """What a few calls do, with their derivatives; ends with what is raised."""
    looks, seen = Looks(), []
    for x, y in (make() for make in calls):
        try:
            result = function(x, y)
            seen.append(
                (
                    [looks(x, counted=True), looks(y, counted=True), looks(result)],
                    copies([x, y, result]),
                )
            )
            leaves = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor)]
            current = [v for v in leaves if v.requires_grad]
            asked = [v for v in (x, y) if v.requires_grad]
            for at in range(order):
                if not current or not asked:
                    break
                tangents = [tangent_of(v, tangent) for v in current]
                options = {"create_graph": at < order - 1, "allow_unused": True}
                gradients = torch.autograd.grad(current, asked, tangents, **options)
                seen.append(
                    (looks(list(gradients)), copies([g for g in gradients if g is not None]))
                )
                current = [g for g in gradients if g is not None and g.requires_grad]
        except Exception as error:  # noqa: BLE001
            seen.append((type(error).__name__, str(error).split("\n")[0][:150], error))
            break
    return seen


def difference(found, wanted):
    """How two plays differ; empty if they don't."""
    for index, (one, other) in enumerate(zip(found, wanted, strict=False)):
        raised = isinstance(one[0], str), isinstance(other[0], str)
        if raised[0] or raised[1]:
            if raised == (True, True) and one[0] in (other[0], OTHERWISE.get(other[0])):
                return ""
            said = [each[:2] if isinstance(each[0], str) else "fine" for each in (one, other)]
            return f"{index}: {said[0]} for {said[1]}"
        if one[0] != other[0]:
            return f"{index} looks: {_first(one[0], other[0])}"
        for p, q in zip(one[1], other[1], strict=True):
            if p.dtype != q.dtype or not torch.allclose(
                p.double(), q.double(), equal_nan=True, rtol=1e-4, atol=1e-6
            ):
                return f"{index} values: {p.flatten()[:6]} for {q.flatten()[:6]}"
    return "" if len(found) == len(wanted) else f"{len(found)} for {len(wanted)}"


def _first(one, other, path=""):
    if type(one) is not type(other) or not isinstance(one, (dict, list)):
        return f"{path} {one} for {other}" if one != other else ""
    pairs = one.items() if isinstance(one, dict) else enumerate(one)
    if len(one) != len(other):
        return f"{path} lengths"
    return next((f for k, v in pairs if (f := _first(v, other[k], f"{path}/{k}"))), "")
