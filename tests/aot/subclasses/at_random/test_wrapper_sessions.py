"""Calls in a row of random programs over mixed wrappers, with changes between them.

Arguments, a tensor that is closed over and a module's weights are plain tensors or wrappers of
several classes, another one in some calls; weights are loaded and frozen, grad mode is switched,
what is closed over is written to. After each call all is compared with eager: results, which
objects they are and which they are views of, arguments, versions, the module, derivatives of up to
three orders.
"""

import random

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, leaves_behind, made, same, two
from tests.aot.subclasses.programs import BINARY, UNARY, WRITES
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
KEEPING = (
    "sin", "two", "size", "clone", "detach", "mean", "softmax", "flip", "stack", "where", "relu",
    "clamp", "layer norm", "no grad", "written", "function", "checkpoint",
)  # fmt: skip


class Told(torch.Tensor):
    """It says its own sizes among its metadata."""

    @staticmethod
    def __new__(cls, inner, shape):
        return torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=inner.stride(), dtype=inner.dtype
        )

    def __init__(self, inner, shape):
        self.inner, self.told = inner, shape

    def __tensor_flatten__(self):
        return ["inner"], (self.told,)

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Told(inner["inner"], *context)

    @classmethod
    def of(cls, inner):
        return cls(inner, tuple(inner.shape))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Told, lambda v: v.inner, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        wrapped = pytree.tree_map_only(torch.Tensor, Told.of, result)
        return return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


KINDS = {
    "plain": lambda seed: made(seed, 3, 3, grad=False),
    "two": lambda seed: two(seed, 3, 3, grad=False),
    "nested": lambda seed: TwoTensor(two(seed, 3, 3, grad=False), two(seed + 3, 3, 3, grad=False)),
    "metadata": lambda seed: Factor(made(seed, 3, 3, grad=False), 2),
    "sizes": lambda seed: Told.of(made(seed, 3, 3, grad=False)),
    "two of sizes": lambda seed: TwoTensor(KINDS["sizes"](seed), KINDS["sizes"](seed + 1)),
}


class Layer(torch.nn.Module):
    """A weight, a quantized one in some modules, and a buffer that counts."""

    def __init__(self, draw, seed):
        super().__init__()
        self.weight = torch.nn.Parameter(KINDS[draw.choice(list(KINDS))](seed))
        self.coded = None
        if draw.random() < 0.4:
            self.coded = torch.nn.Parameter(Int8.of(made(seed, 3, 3, grad=False)), False)
        self.register_buffer("seen", KINDS[draw.choice(list(KINDS))](seed + 5))

    def forward(self, x):
        y = x @ self.weight
        with torch.no_grad():
            self.seen.add_(1)
        return y if self.coded is None else torch.nn.functional.linear(y, self.coded)


def steps_of(draw):
    found = []
    for _ in range(draw.randint(2, 5)):
        table = draw.choice((KEEPING, KEEPING, tuple(BINARY), tuple(WRITES), ("view", "layer")))
        found.append((draw.choice(table), draw.choice("xyzcv"), draw.choice("xyzcv")))
    return found


def function_of(steps, ending, layer, closed):
    def function(x, y):
        held = {"x": x, "y": y, "z": x * 1, "c": closed, "v": y[:]}
        for name, first, second in steps:
            if name in BINARY:
                held["z"] = BINARY[name](held[first], held[second])
            elif name in WRITES:
                WRITES[name](held[first])
            elif name == "view":
                held["v"] = held[first][:]
            else:
                held["z"] = (layer if name == "layer" else UNARY[name])(held[first])
        z, v = held["z"], held["v"]
        return {"z": z, "z x": (z, x), "z z": (z, z), "v": v, "z v": {"a": z, "b": [v]}}[ending]

    return function


def arguments(draw, classes, seed, writes):
    found = []
    for index in range(2):
        value = KINDS[classes.choice(list(KINDS))](seed + index)
        history = draw.choice(("none", "result") if writes else ("none", "leaf", "result"))
        value = value if history == "none" else value.requires_grad_()
        found.append(value * 2 if history == "result" else value)
    return found


def change(draw, layer, closed):
    """What a user does between two calls."""
    what = draw.choice(("nothing", "nothing", "freeze", "load", "write"))
    if what == "freeze":
        layer.weight.requires_grad_(not layer.weight.requires_grad)
    if what == "load":
        state = {name: value.detach() for name, value in layer.state_dict().items()}
        layer.load_state_dict({k: v if k == "coded" else v * 1.5 for k, v in state.items()})
    if what == "write":
        with torch.no_grad():
            closed.mul_(0.5)


def after(result, given, leaves, order):
    """Everything that a call did, with derivatives."""
    flat = pytree.tree_leaves(result)
    found = [result, given, [value._version for value in given]]
    found.append([[value is other for other in (*given, *flat)] for value in flat])
    found.append([[value._base is one for one in given] for value in flat])
    outputs = [value for value in (*flat, *given) if value.requires_grad]
    for _ in range(order):
        if not (outputs and leaves):
            break
        losses = [(value * value.detach()).sum() for value in outputs]
        given_ones = [torch.ones_like(loss) for loss in losses]
        gradients = torch.autograd.grad(
            losses, leaves, given_ones, allow_unused=True, create_graph=True
        )
        found += gradients
        outputs = [each for each in gradients if each is not None and each.requires_grad]
    return found


def session(seed, compiling, orders=(1, 2)):
    """What four calls do; ends with what is raised."""
    draw = random.Random(seed)
    steps, ending = steps_of(draw), draw.choice(("z", "z x", "z z", "v", "z v"))
    writes = any(step[0] in WRITES for step in steps)
    layer, closed = Layer(draw, seed), KINDS[draw.choice(list(KINDS))](seed + 20)
    if not writes and draw.random() < 0.4:
        closed.requires_grad_()
    function = compiling(function_of(steps, ending, layer, closed))
    seen = [f"{steps} {ending}"]
    for call in range(4):
        classes = random.Random(seed if draw.random() < 0.75 else seed + call)
        given = arguments(draw, classes, seed + 3 * call, writes)
        change(draw, layer, closed)
        leaves = leaves_behind(*given, layer.weight, closed)
        grad_mode = draw.random() < 0.85
        order = draw.choice(orders) * grad_mode  # Views that are made in no_grad may be forbidden.
        try:
            with torch.set_grad_enabled(grad_mode):
                result = function(*given)
            seen.append(after(result, given, leaves, order))
        except UnsupportedError:
            return [*seen, "refused"]
        except Exception as error:  # noqa: BLE001  (whatever a class or autograd raises)
            return [*seen, f"raised {type(error).__name__}"]
        kept = (layer.weight, layer.seen, closed)
        seen.append([value.detach().clone() for value in kept])
    return seen


def check(seed, orders=(1, 2)):
    """How many calls were compared."""
    wanted = session(seed, lambda function: function, orders)
    found = session(seed, lambda f: funcaot.compile(f, backend=COMPILER), orders)
    if found[-1] == "refused":
        found, wanted = found[:-1], wanted[: len(found) - 1]
    try:
        same(found, wanted, rtol=2e-3, atol=1e-4)
    except AssertionError as error:
        raise AssertionError(f"session {seed}, {wanted[0]}: {error}") from error
    return len(found) // 2


def test_sessions():
    assert sum(check(seed) for seed in range(4)) > 8


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_more_sessions(part):
    assert sum(check(seed, (1, 2, 2, 3)) for seed in range(30 * part, 30 * part + 30)) > 50
