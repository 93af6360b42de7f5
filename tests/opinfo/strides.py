"""Finds the ops whose symbolic versions say another thing of their results than eager's do.

    python -m tests.opinfo.strides [raw] [cuda] [PART PARTS]

prints a table of the ops that operators of torch's database run, forward, backward and in the
backward of that, on tensors in many layouts: sizes, strides, dtype, and whether a result shares
memory. With ``raw`` they are torch's own fake tensors that say so; else they are those of a
capture, where ``eager_strides`` has mended what was found before, and the table should be empty.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import pickle
import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from funcaot._torch.tracing.tracing import DATA_DEPENDENT_ERRORS, TapeFunctionalMode, fake_mode
from tests.opinfo.layouts import LAYOUTS, drawn_layout, relaid

# Views for eager, whose memory functionalization keeps apart; docs/limits.md has them.
UNSAFE = ("aten._unsafe_view", "aten.unsafe_split", "aten.lift_fresh")
DEVICE = "cuda" if "cuda" in sys.argv else "cpu"
# What eager and the symbolic op may both refuse: a write to expanded statistics, in eager's case
# by chance not; the scales of products of no rows.
REFUSED = ("writes to a tensor of shape", "scale_a must have", "to have an integral dtype")
SECONDS = 60

Disagreement = tuple[str, str, str]  # the op, the layout, what differs and how


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def is_plain(x: Tensor) -> bool:
    return type(x) is Tensor and x.layout is torch.strided and x.device.type == DEVICE


def described(values: Any) -> Any:
    """Something that is equal for calls of an op that say the same of their results."""
    if isinstance(values, Tensor):
        return (tuple(values.shape), values.stride(), values.dtype, values.is_conj())
    if isinstance(values, list | tuple):
        return tuple(map(described, values))
    return type(values).__name__, repr(values)


class Comparing(TorchDispatchMode):
    """Runs each op on its tensors, and once more on symbolic ones that lie like them.

    Attributes:
        layout: What is noted with a disagreement.
        found: The disagreements.
        calls: How many ops were compared.
    """

    def __init__(self, *, raw: bool = False) -> None:
        super().__init__()
        self.layout = ""
        self.found: list[Disagreement] = []
        self.calls: Counter[Any] = Counter()
        self._raw = raw
        self._seen: set[Any] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        key = (func, described(args), described(sorted(kwargs.items())))
        if not all(map(is_plain, given)) or key in self._seen:
            return func(*args, **kwargs)
        self._seen.add(key)
        before = [(x.shape, x.stride(), x.dtype, x.is_conj(), x.is_neg()) for x in given]
        memory = {x.untyped_storage()._cdata for x in given}
        result = func(*args, **kwargs)
        if all(map(is_plain, tensors(result))):
            self.calls[func] += 1
            with _disable_current_modes():
                said = self._symbolic(func, args, kwargs, before)
            self._compare(func, key, self._facts(result, memory), said)
        return result

    @staticmethod
    def _facts(result: Any, memory: set[int]) -> list[Any]:
        return [
            (tuple(x.shape), x.stride(), x.dtype, x.untyped_storage()._cdata in memory)
            for x in tensors(result)
        ]

    def _compare(self, func: Any, key: Any, real: list[Any], said: Any) -> None:
        if said is None or said == real:
            return
        if isinstance(said, str):
            if not any(text in said for text in REFUSED):
                self.found.append((str(func), self.layout, f"raises {said} of {key[1]}"))
            return
        names = ("size", "stride", "dtype", "sharing")
        for one, other in zip(real, said, strict=True):
            differ = [name for name, a, b in zip(names, one, other, strict=True) if a != b]
            if differ == ["sharing"] and str(func).startswith(UNSAFE):
                continue
            if differ:
                text = f"{'+'.join(differ)}: {other[:2]}, and in eager {one[:2]}, of {key[1]}"
                self.found.append((str(func), self.layout, text))

    def _symbolic(self, func: Any, args: Any, kwargs: Any, before: list[Any]) -> Any:
        """What the symbolic op says; how it failed; None if it needs values."""
        remaining, made = iter(before), []
        fake = FakeTensorMode() if self._raw else fake_mode()
        functional = TapeFunctionalMode()

        def symbolic(_: Tensor) -> Tensor:
            shape, stride, dtype, conjugated, negated = next(remaining)
            value = torch.empty_strided(shape, stride, dtype=dtype, device=DEVICE)
            value = value.conj() if conjugated else value
            value = torch._neg_view(value) if negated else value
            if not self._raw:
                with functional:
                    value = FunctionalTensor.to_functional(value)
            made.append(value)
            return value

        try:
            with fake:
                args, kwargs = tree_map_only(Tensor, symbolic, (args, kwargs))
                if self._raw:
                    result = func(*args, **kwargs)
                else:
                    with functional:
                        result = func(*args, **kwargs)
        except DATA_DEPENDENT_ERRORS:
            return None
        except Exception as error:  # noqa: BLE001  (it is reported)
            return f"{type(error).__name__}: {str(error)[:200]}"
        return self._facts(result, {x.untyped_storage()._cdata for x in made})


# --- operators of torch's database -------------------------------------------------------------


def quietly(function: Callable[[], Any], comparing: Comparing) -> Any:
    """What it returns, with its ops compared; None where eager refuses."""
    try:
        with comparing:
            return function()
    except Exception:  # noqa: BLE001  (what eager can't do says nothing)
        return None


def run_orders(function: Callable[..., Any], values: Any, comparing: Comparing) -> None:
    """Run a function, its backward for gradients in several layouts, and the backward of that."""
    args, kwargs = values
    torch.manual_seed(0)
    results = quietly(lambda: function(*args, **kwargs), comparing)
    leaves = [x for x in tensors(values) if x.requires_grad]
    for order in range(2):
        results = [x for x in tensors(results) if x.grad_fn is not None]
        if not results or not leaves or not all(map(is_plain, results)):
            return
        found = None
        for pushed in ("alike", "plain", "turned", "expanded")[: 4 - 2 * order]:
            gradients = [pushed_gradient(x.detach(), pushed) for x in results]
            made = quietly(
                lambda results=results, gradients=gradients: torch.autograd.grad(
                    results, leaves, gradients, create_graph=True, allow_unused=True
                ),
                comparing,
            )
            found = made if found is None else found
        results = found


def pushed_gradient(x: Tensor, pushed: str) -> Tensor:
    if pushed == "alike":
        return torch.rand_like(x)
    if pushed == "expanded":
        return torch.ones((), dtype=x.dtype, device=DEVICE).expand(x.shape)
    value = torch.rand(x.shape, dtype=x.dtype, device=DEVICE)
    return LAYOUTS["turned"](value).detach() if pushed == "turned" else value


def samples_of(operator: Any, most: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Arguments and keywords of an operator, as different as so few can be."""
    from funcaot.testing.torch_operators import operators, torch_opinfo

    if not operator.supported_dtypes(DEVICE):
        return []
    if dtype not in operator.supported_dtypes(DEVICE):
        dtype = operators.dtype_for(operator, DEVICE)
    given = list(itertools.islice(torch_opinfo.samples_of(operator, DEVICE, dtype), 400))
    chosen = given[:: -(-len(given) // most)] if given else []
    return [(list(sample.values), dict(sample.kwargs)) for sample in chosen]


def disagreements(
    operator: Any, most: int, *, raw: bool = False, layouts: Any = LAYOUTS
) -> list[Disagreement]:
    """Of an operator's samples in the layouts: what its ops say otherwise than eager's."""
    comparing = Comparing(raw=raw)
    samples = samples_of(operator, most)
    for layout, values, first in itertools.product(layouts, samples, (False, True)):
        laid, changed = relaid(values, layout, first=first)
        if changed or (layout == "contiguous" and not first):
            comparing.layout = layout
            run_orders(operator.op, laid, comparing)
    return comparing.found


def apart(function: Callable[[], Any], default: Any) -> Any:
    """What it returns, from a process of its own: eager crashes of some empty tensors."""
    if DEVICE != "cpu":
        return function()  # A GPU can't be used in a fork.
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "wb") as pipe:
            signal.alarm(SECONDS)
            logging.disable()
            pickle.dump(function(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(written) if written else default


# --- ops by themselves -------------------------------------------------------------------------

SHAPES = [(4, 3, 5), (4, 1, 5), (3, 5), (4, 3, 1), (1, 3, 5), (5,), (1,), (), (1, 3, 1)]
MIXED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
NUMBERS = {"number": 1, "float": 0.3, "int": 0, "bool": False}


def elementwise_ops() -> Iterator[Any]:
    """Those of ATen that torch says are, and backwards of tensors and numbers alone."""
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if op._schema.is_mutable:
                continue
            if torch.Tag.pointwise in op.tags or name.endswith("_backward"):
                yield op


def drawn_call(op: Any, pick: random.Random, dtype: torch.dtype | None) -> Any:
    """Arguments and keywords, whose tensors have shapes that go together; None if it wants more.

    Without a dtype, each tensor has one of its own.
    """
    alike = pick.random() < (0.3 if torch.Tag.pointwise in op.tags else 1)
    shape, args, kwargs = pick.choice(SHAPES[:3]), [], {}
    for argument in op._schema.arguments:
        kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
        if argument.has_default_value():
            continue
        if str(argument.type) == "Tensor":
            own = shape if alike or not args else pick.choice(SHAPES)
            kind_of = pick.choice(MIXED) if dtype is None else dtype
            value: Any = drawn_layout((torch.rand(own) * 0.8 + 0.1).to(DEVICE, kind_of), pick)
        elif kind in NUMBERS:
            value = NUMBERS[kind]
        elif "Optional" in str(argument.type):
            value = None
        else:
            return None
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def disagreements_of_draws(op: Any, most: int, *, raw: bool) -> tuple[list[Disagreement], int]:
    """Of one op on drawn tensors; and whether eager could run it."""
    comparing = Comparing(raw=raw)
    comparing.layout = "drawn"
    torch.manual_seed(0)
    for seed in range(most):
        # What takes no floats takes integers; half of the calls mix dtypes.
        for dtype in (*DTYPES[seed % 3 :: 3], *DTYPES[3:]) if seed % 2 else (None, *DTYPES):
            call = drawn_call(op, random.Random(f"{op} {seed}"), dtype)
            if call is None:
                return [], 0
            if dtype is None and op.__name__.partition(".")[0].endswith("_backward"):
                continue  # autograd doesn't mix them there
            known = comparing.calls.total()
            quietly(lambda call=call: op(*call[0], **call[1]), comparing)
            if comparing.calls.total() > known:
                break
    return comparing.found, int(bool(comparing.calls))


def elementwise_disagreements(most: int, *, raw: bool = False) -> tuple[list[Disagreement], int]:
    """Of elementwise ops on drawn tensors; and how many ops eager could run.

    Each has a process of its own: some backwards corrupt memory if shapes don't go together.
    """
    found, ran = [], 0
    for op in elementwise_ops():
        draws = functools.partial(disagreements_of_draws, op, most, raw=raw)
        of_op, is_run = apart(draws, ([], 0))
        found += of_op
        ran += is_run
    return found, ran


def main() -> None:
    """Print the table, an op and a layout a line, with an example of each."""
    from funcaot._torch.tensors.testing import operators

    raw, numbers = "raw" in sys.argv, [int(word) for word in sys.argv[1:] if word.isdigit()]
    part, parts = numbers or (0, 1)
    warnings.simplefilter("ignore")
    found = [] if part else elementwise_disagreements(100, raw=raw)[0]
    for operator in operators()[part::parts]:
        died = [(operator.name, "?", "the process ended early")]
        found += apart(lambda operator=operator: disagreements(operator, 8, raw=raw), died)
    examples = {(op, layout): text for op, layout, text in reversed(found)}
    for (op, layout), count in sorted(Counter((op, layout) for op, layout, _ in found).items()):
        print(f"{op:45} {layout:16} {count:4}  {examples[op, layout][:200]}")


if __name__ == "__main__":
    main()
