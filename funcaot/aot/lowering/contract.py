"""The contract of executables: what a call may rely on, whatever a backend returns.

Note [Contract]: a graph is proved to keep its results apart (``graph_checks``), but a compiler may
find two of them equal, or one equal to an input, and return one tensor, or one memory, for both.
Autograd marks objects, and callers write into memory. So what an executable returns is compared
with the graph that went in:

- Two results are two objects, and none is an input's, unless the graph returns one node twice.
- Results share memory with each other, or with an input, only where the graph says so; what is
  kept for a backward may share with the rest of it. Nothing else holds their memory. What a
  Function on real values keeps, which it may have met somewhere, stays in its memory.
- Dtypes are those of the capture; so are strides, but where the compiler may choose them.

If sizes are fixed, all of this is a property of the executable: it is examined in its first run,
and what has to be mended is compiled into the ones that follow. With open sizes that is done once
for each of them; what user code returns is examined in every run. In tests each run is checked
(``config.check_aliases``), and that no operand changed but those that the graph writes to.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot import config
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.storages import copied_to, restrided_in_place, storage_of, users_beside
from funcaot.aot.graph import graphs
from funcaot.aot.graph.graph_checks import Roles, is_met
from funcaot.aot.graph.layout import Layout, restrided
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.lowering.kept_layouts import has_free_layout
from funcaot.aot.lowering.memory_check import MemoryCheck
from funcaot.aot.signature.sizes import concrete
from funcaot.errors import GraphError

Run = Callable[[list[Any]], Sequence[Any]]
Mend = Callable[[torch.Tensor], torch.Tensor]
Mends = tuple[tuple[int, Mend], ...]

_REMEDY = 'compile with backend="eager", and please report this with the function.'
_SIZES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Result:
    """What a graph says of one output.

    Attributes:
        node: The number of the value that it is.
        memory: The number of the value whose memory it lives in.
        stride: Its strides, maybe with open sizes; None if they are free or there are none.
        private: Whether it is kept for a backward, so that nobody sees it.
        offset: Where it begins in its storage; None if that is free or depends on open sizes.
        dtype: Its dtype.
        met: Whether a Function on real values keeps it, which may have met it somewhere.
    """

    node: int
    memory: int
    stride: tuple[Any, ...] | None
    private: bool
    offset: int | None = None
    dtype: torch.dtype | None = None
    met: bool = False


@dataclass(frozen=True, eq=False)
class Contract:
    """What a graph says of its executable.

    Attributes:
        what: The graph, for messages.
        operands: The number of each operand.
        results: The outputs, None for what isn't a tensor.
        symbols: The open sizes, by position among the operands.
        written: Positions of the operands that the graph writes to.
    """

    what: str
    operands: tuple[int, ...]
    results: tuple[Result | None, ...]
    symbols: tuple[tuple[int, Any], ...]
    written: frozenset[int] = frozenset()

    def without_strides(self) -> Contract:
        """The contract of what runs eager's own ops, whose strides are eager's by themselves."""
        free = [
            result if result is None else dataclasses.replace(result, stride=None, offset=None)
            for result in self.results
        ]
        return dataclasses.replace(self, results=tuple(free))

    def sizes(self, operands: Sequence[Any]) -> tuple[int, ...]:
        """The open sizes of a call."""
        return tuple([operands[position] for position, _ in self.symbols])

    def mends(self, operands: Sequence[Any], made: Sequence[Any], *, mended: bool = False) -> Mends:
        """What has to be done to an executable's results.

        Args:
            operands: What it was given.
            made: What it returned.
            mended: Whether all of that was done already.

        Raises:
            GraphError: For a result of another dtype, which no copy mends.
        """
        sizes = dict(zip([symbol for _, symbol in self.symbols], self.sizes(operands), strict=True))
        examined = _Examined(self, operands, mended=mended)
        for position, (result, value) in enumerate(zip(self.results, made, strict=True)):
            if isinstance(value, torch.Tensor) and result is not None:
                if result.dtype not in (None, value.dtype):
                    raise GraphError(
                        f"Result {position} of the compiled {self.what} is {value.dtype}, and "
                        f"{result.dtype} in the captured graph.",
                        remedy=_REMEDY,
                    )
                stride = concrete(result.stride, sizes) if sizes else result.stride
                examined.add(position, result, value, stride)
        examined.find_held_elsewhere()
        return tuple(sorted(examined.mends.items()))

    def check(self, operands: Sequence[Any], made: Sequence[Any]) -> None:
        """Prove that what a call gets is as the graph says.

        Raises:
            GraphError: If it isn't.
        """
        if not self.mends(operands, made, mended=True):
            return
        gc.collect()  # what is held by garbage alone is held by nobody
        broken = self.mends(operands, made, mended=True)
        if broken:
            positions = ", ".join(str(position) for position, _ in broken)
            raise GraphError(
                f"What the {self.what} returns as {positions} is one object with something else, "
                "shares memory or has other strides.",
                remedy=_REMEDY,
            )


class _Examined:
    """One run's operands and results: objects, and who lives in which memory."""

    def __init__(self, contract: Contract, operands: Sequence[Any], *, mended: bool) -> None:
        self.mends: dict[int, Mend] = {}
        self._mended = mended
        self._met: set[int] = set()
        self._objects: dict[int, Result | None] = {}
        self._holders: dict[int, list[tuple[int, bool]]] = {}
        self._results: dict[int, dict[int, tuple[torch.Tensor, tuple[int, ...] | None]]] = {}
        self._values: dict[int, list[torch.Tensor]] = {}
        for operand, memory in zip(operands, contract.operands, strict=True):
            if isinstance(operand, torch.Tensor):
                self._objects[id(operand)] = None
                if operand.layout is torch.strided:
                    self._holders.setdefault(storage_of(operand), []).append((memory, False))
        self._given = frozenset(self._holders)
        self._memories = frozenset(contract.operands)

    def add(
        self, position: int, result: Result, value: torch.Tensor, stride: tuple[int, ...] | None
    ) -> None:
        """Compare one result with what came before."""
        if value.layout is not torch.strided:
            if self._objects.setdefault(id(value), result) is not result:
                self.mends[position] = torch.clone
            return
        storage = storage_of(value)
        self._values.setdefault(storage, []).append(value)
        holders = self._holders.get(storage, []) if value.numel() else []
        planned = all(
            memory == result.memory or (private and result.private) for memory, private in holders
        )
        layout = None if stride is None else Layout(tuple(value.shape), stride)
        if result.met and (layout is None or layout.fits(value)):
            if self._mended:
                self._met.add(storage)  # what it was made of may be there yet
            else:
                self.mends[position] = _itself
            return
        # A view of an operand lies where the operand does, and is a view for autograd too.
        own = result.memory not in self._memories
        moved = own and result.offset not in (None, value.storage_offset())
        if not planned or moved or not (layout is None or layout.fits(value)):
            self.mends[position] = _copying(value, stride, (own and result.offset) or 0)
            return
        known = self._objects.setdefault(id(value), result)
        if known is None:
            # One of no elements shares nothing, but is an object of its own too.
            self.mends[position] = _copying(value, stride) if own else _viewing
        elif known.node != result.node and not (known.private and result.private):
            self.mends[position] = torch.detach
        elif stride is not None and (value.stride() != stride or (own and value._is_view())):
            # Strides of one element: nothing lies elsewhere. And what an interpreter returns may be
            # a view for autograd, which forbids to write to it.
            self.mends[position] = functools.partial(restrided_in_place, stride=stride)
        elif _is_marked(value, holders):
            self.mends[position] = torch.detach
        if value.numel():
            self._holders.setdefault(storage, []).append((result.memory, result.private))
            self._results.setdefault(storage, {})[position] = (value, stride)

    def find_held_elsewhere(self) -> None:
        """Note results in memory that the executable keeps: the next run would see writes."""
        others = self._given | self._met
        for storage, found in self._results.items():
            if storage in others or not users_beside(self._values[storage]):
                continue
            for position, (value, stride) in found.items():
                self.mends[position] = _copying(value, stride)


def _is_marked(value: torch.Tensor, holders: Sequence[Any]) -> bool:
    """Whether autograd knows more of a result than that it is one.

    It would forbid to write to a view of what nobody has. (A subclass makes such a view of each of
    its results, in eager too.) And some ops that torch interprets return leaves that require grad.
    """
    if type(value) is not torch.Tensor or holders:
        return False
    leaf = value.requires_grad and value.is_leaf and not torch.is_grad_enabled()
    return leaf or value._base is not None


def _itself(value: torch.Tensor) -> torch.Tensor:
    # An object of its own: autograd saves no input that is also an output.
    return value.detach()


def _viewing(value: torch.Tensor) -> torch.Tensor:
    # Of an operand that a Function returned as it is.
    return value.view_as(value)


def _copying(value: torch.Tensor, stride: tuple[int, ...] | None, offset: int = 0) -> Mend:
    if stride is None:
        return torch.clone
    if offset:
        return functools.partial(copied_to, stride=stride, offset=offset)
    layout = Layout(tuple(value.shape), stride)
    return lambda value: restrided(value, layout)


def contract_of(
    module: fx.GraphModule,
    what: str,
    roles: Roles,
    written: frozenset[int] = frozenset(),
    kept: Sequence[int] | None = None,
) -> Contract:
    """Read the contract off a graph.

    Args:
        module: The functional graph, as it was captured.
        what: The graph, for messages.
        roles: What becomes of its outputs.
        written: Operands that its executable writes to.
        kept: Positions of the outputs that its executable returns; all by default.
    """
    numbers: dict[Hashable, int] = {}

    def number(thing: Hashable) -> int:
        # Nodes would keep the graph alive.
        return numbers.setdefault(thing, len(numbers))

    operands = []
    symbols = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            if graphs.is_size_input(node):
                symbols.append((len(operands), shapes.expression_of(graphs.value_of(node))))
            operands.append(number(node))
    output: Any = next(iter(reversed(module.graph.nodes)))
    results: list[Result | None] = []
    for position, node in enumerate(output.args[0]):
        value = graphs.value_of(node) if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor):
            results.append(None)
            continue
        free = has_free_layout(module, position) or value.layout is not torch.strided
        stride = None if free else spec_of(value).stride
        memory = number(graphs.memory_of(node))
        begin = None if free else value.storage_offset()
        offset = begin if type(begin) is int else None
        private = position in roles.private
        met = private and is_met(node)
        results.append(Result(number(node), memory, stride, private, offset, value.dtype, met))
    chosen = results if kept is None else [results[position] for position in kept]
    return Contract(what, tuple(operands), tuple(chosen), tuple(symbols), written)


class Executable:
    """What a backend made of a graph, with the contract kept.

    Attributes:
        settled: The same without looking, once that is known to be enough; else None.
    """

    def __init__(self, run: Run, contract: Contract, *, settles: bool) -> None:
        """Nothing has been examined yet.

        Args:
            run: What the backend made.
            contract: What holds of it.
            settles: Whether what it returns has the same structure in each run at some sizes.
        """
        self._run = run
        self._contract = contract
        self._settles = settles
        self._checked = config.get().check_aliases
        self._known: dict[tuple[int, ...], Mends] = {}
        self.settled: Run | None = None

    @property
    def parts(self) -> tuple[Run, Contract, bool]:
        """What it was made of."""
        return self._run, self._contract, self._settles

    def __call__(self, operands: list[Any]) -> Sequence[Any]:
        """Run it; like what it stands for, it may empty the list."""
        settled = self.settled
        if settled is not None:
            return settled(operands)
        run = self._run_at_sizes if self._settles and self._known else self._run_examined
        return self._run_checked(run, operands) if self._checked else run(operands)

    def _run_examined(self, operands: list[Any]) -> Sequence[Any]:
        given = list(operands)
        made = self._run(operands)
        contract = self._contract
        mends = contract.mends(given, made)
        if self._settles:
            self._settle(contract.sizes(given), mends)
        return _mended(made, mends)

    def _run_at_sizes(self, operands: list[Any]) -> Sequence[Any]:
        mends = self._known.get(self._contract.sizes(operands))
        if mends is None:
            return self._run_examined(operands)
        return _mended(self._run(operands), mends)

    def _settle(self, sizes: tuple[int, ...], mends: Mends) -> None:
        if sizes:
            if len(self._known) >= _SIZES_KEPT:
                self._known = {}
            self._known[sizes] = mends
            return
        run: Run = self._run
        if mends:
            run = _mending(run, mends)
        if self._checked:
            plain = run

            def run_checked(operands: list[Any]) -> Sequence[Any]:
                return self._run_checked(plain, operands)

            run = run_checked
        self.settled = run

    def _run_checked(self, run: Run, operands: list[Any]) -> Sequence[Any]:
        contract = self._contract
        given = list(operands)
        memory = MemoryCheck(given, contract.written)
        made = run(operands)
        contract.check(given, made)
        memory.finish(contract.what)
        return made


def settled(run: Run) -> Run:
    """The fastest callable that does what an executable does from now on."""
    return (run.settled or run) if isinstance(run, Executable) else run


def _mended(made: Sequence[Any], mends: Mends) -> Sequence[Any]:
    if not mends:
        return made
    values = list(made)
    for position, mend in mends:
        values[position] = mend(values[position])
    return values


def _mending(run: Run, mends: Mends) -> Run:
    def run_mending(operands: list[Any]) -> Sequence[Any]:
        values = list(run(operands))
        for position, mend in mends:
            values[position] = mend(values[position])
        return values

    return run_mending
