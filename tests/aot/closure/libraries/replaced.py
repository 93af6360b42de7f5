"""Things that somebody replaces in libraries, and functions that reach them, as data."""

import importlib
import sys
import types
from dataclasses import dataclass

NAME = "module_of_a_user_of_libraries"
HEAD = """
import calendar, collections, colorsys, contextlib, fractions, functools, importlib
import math, operator, statistics, sys, textwrap
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
"""


@dataclass(frozen=True)
class Case:
    """A function, and what is replaced.

    Attributes:
        body: Text of a function ``f``, or an expression that multiplies ``x``.
        holder: The module or class in which something is replaced.
        name: What.
        by: Source text of what comes there.
    """

    body: str
    holder: str
    name: str
    by: str = "lambda *given, **named: 7.0"

    def __str__(self):
        return f"{self.holder}.{self.name}"

    def module(self):
        """The user's module, as a process has it that starts."""
        body = self.body if "def f" in self.body else f"def f(x):\n    return x * {self.body}"
        made = sys.modules[NAME] = types.ModuleType(NAME)
        exec(compile(f"{HEAD}\n{body}\n", f"{NAME}.py", "exec"), vars(made))
        return made

    def replace(self, patch, module):
        """Replace it."""
        module = sys.modules[NAME]
        patch.setattr(_at(self.holder), self.name, eval(self.by, vars(module)), raising=False)


def _at(path):
    for count in range(path.count(".") + 1, 0, -1):
        parts = path.split(".")
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise LookupError(path)


DIRECT = {
    "function": Case("statistics.fsum([1.0, 2.0])", "statistics", "fsum"),
    "function of C": Case("math.floor(2.5)", "math", "floor"),
    "constant": Case("math.pi", "math", "pi", "3.0"),
    "by text": Case("getattr(math, 'floor')(2.5)", "math", "floor"),
    "in sys.modules": Case("sys.modules['math'].floor(2.5)", "math", "floor"),
    "module imported by text": Case("importlib.import_module('math').floor(2.5)", "math", "floor"),
    "in a dictionary": Case("vars(math)['floor'](2.5)", "math", "floor"),
    "module by another name": Case(
        "n = math\ndef f(x):\n    return x * n.sqrt(2.5)", "math", "sqrt"
    ),
    "imported inside": Case(
        "def f(x):\n    from statistics import fsum as s\n    return x * s([1.0])",
        "statistics",
        "fsum",
    ),
    "operator": Case(
        "functools.reduce(operator.mul, [1, 2, 4])", "operator", "mul", "lambda a, b: a + b"
    ),
    "class": Case(
        "collections.Counter('aab')['a']", "collections", "Counter", "lambda s: {'a': 9}"
    ),
    "NumPy": Case("float(np.prod([1, 2, 3]))", "numpy", "prod"),
    "torch": Case("def f(x):\n    return F.gelu(x)", "torch.nn.functional", "gelu", "torch.sin"),
}
REACHED = {
    "function": Case("statistics.fmean([1.0, 2.0])", "statistics", "fsum"),
    "function in another module": Case("float(fractions.Fraction(4, 6))", "math", "gcd", "max"),
    "private function": Case("calendar.monthrange(2000, 2)[1]", "calendar", "isleap"),
    "class": Case(
        "len(textwrap.fill('aa bb', 2))",
        "textwrap",
        "TextWrapper",
        "type('W', (), {'__init__': lambda s, **k: None, 'fill': lambda s, t: 'x' * 9})",
    ),
    "constant": Case("colorsys.hls_to_rgb(0.1, 0.2, 0.3)[0]", "colorsys", "ONE_THIRD", "9.0"),
    "what hides a function of Python's": Case(
        "float(np.prod([2])) + statistics.median([1.0, 2.0, 3.0])",
        "statistics",
        "sorted",
        "lambda given: [9.0] * 3",
    ),
    "NumPy": Case("float(np.linalg.norm([3.0, 4.0]))", "numpy.linalg._linalg", "sqrt"),
    "in a function of torch": Case(
        "def f(x):\n    return x * F.triplet_margin_with_distance_loss(x, x * 2 + 1, x + 0.5)",
        "torch",
        "pairwise_distance",
        "lambda x, y: x.sum() * 9",
    ),
    "in a distribution": Case(
        "def f(x):\n    return torch.distributions.Uniform(x, x + 1).mean",
        "torch.distributions.uniform",
        "broadcast_all",
        "lambda *given: tuple(each * 2 for each in given)",
    ),
}
METHODS = {
    "method": Case(
        "float(fractions.Fraction(7, 3).limit_denominator(1))",
        "fractions.Fraction",
        "limit_denominator",
    ),
    "operator": Case("float(fractions.Fraction(7, 3) * 2)", "fractions.Fraction", "__mul__"),
    "operator that hides a base's": Case(
        "float(fractions.Fraction(7, 3))", "fractions.Fraction", "__float__"
    ),
    "of an object outside": Case(
        "held = fractions.Fraction(7, 3)\ndef f(x):\n    return x * float(held)",
        "numbers.Rational",
        "__float__",
    ),
    "property": Case(
        "held = fractions.Fraction(7, 3)\ndef f(x):\n    return x * held.numerator",
        "fractions.Fraction",
        "numerator",
        "property(lambda self: 9)",
    ),
    "of a dictionary's subclass": Case(
        "collections.Counter('aab').most_common(1)[0][1]",
        "collections.Counter",
        "most_common",
        "lambda self, n: [('a', 9)]",
    ),
    "that Python calls": Case(
        "def f(x):\n    with contextlib.nullcontext(3) as n:\n        return x * n",
        "contextlib.nullcontext",
        "__enter__",
    ),
    "inherited by a user's class": Case(
        "class Mine(fractions.Fraction): pass\ndef f(x):\n    return x * float(Mine(7, 3) + 1)",
        "fractions.Fraction",
        "__add__",
    ),
    "of all modules": Case(
        "m = nn.GELU()\ndef f(x):\n    return m(x)",
        "torch.nn.Module",
        "__call__",
        "lambda self, x: x * 7",
    ),
    "of a module's class": Case(
        "m = nn.GELU()\ndef f(x):\n    return m(x)",
        "torch.nn.GELU",
        "__call__",
        "lambda self, x: x * 7",
    ),
    "of a distribution": Case(
        "def f(x):\n    return torch.distributions.Normal(x, 1.0).log_prob(x + 1)",
        "torch.distributions.Normal",
        "log_prob",
        "lambda self, x: x * 7",
    ),
}
CASES = {
    f"{how}: {what}": case
    for how, cases in (("direct", DIRECT), ("reached", REACHED), ("methods", METHODS))
    for what, case in cases.items()
}
# What stands there comes from a function of the user's that gives another one in each process.
HOLDING = {
    "closure": ("def made(n):\n    return lambda *given: n\nput = made(NUMBER)", "put"),
    "default": ("def put(*given, n=NUMBER):\n    return n", "put"),
    "attribute": ("def put(*given):\n    return put.n\nput.n = NUMBER", "put"),
    "partial": ("def told(n, *given):\n    return n\nput = functools.partial(told, NUMBER)", "put"),
    "object": (
        "class Told:\n    def __call__(self, *given):\n        return self.n\n"
        "put = Told()\nput.n = NUMBER",
        "put",
    ),
}
