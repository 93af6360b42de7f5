"""A compiled function: the way from a call to one of its entries."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch

from funcaot._torch.dynamo.dynamo import is_dynamo_compiling, without_dynamo
from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import Situation, situation
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.classes.own_functions import without_functions_of_classes
from funcaot._torch.tensors.pytree import tree_map
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.observed.logs import show_recompile
from funcaot.aot.graph.policy import Policy
from funcaot.aot.graph.settings import Settings
from funcaot.aot.runtime import warm_up
from funcaot.aot.runtime.artifact import Artifacts, Saved, save
from funcaot.aot.runtime.cache import EntryCache
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.generated.fast_call import MISS
from funcaot.aot.runtime.inlined import inline, is_inlined
from funcaot.aot.runtime.open_captures import OpenCaptures
from funcaot.aot.runtime.raised import (
    RaisedCalls,
    RaisedInCaptureError,
    call_plainly,
    is_of_function,
)
from funcaot.aot.runtime.refused import Refusals
from funcaot.aot.runtime.routes.grown_calls import GrownCalls
from funcaot.aot.runtime.sized_calls import Answered, NotStagedError, SizedCalls, without_effects
from funcaot.aot.runtime.transform_stacks import NotCapturedError, Stack
from funcaot.aot.signature.dynamic import SizeHistory
from funcaot.aot.signature.leaf_names import positions_of
from funcaot.aot.signature.signature import Signature, read_signature
from funcaot.aot.signature.sizes import SizeError
from funcaot.aot.state.optimizer_step import STEPS_FIRST, FirstStepError
from funcaot.aot.state.state_effects import Call
from funcaot.aot.subclasses.classes import has_acting_classes
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.aot.tape.known.sizes_of_values import Answers, SizesNeededError, answering
from funcaot.backends.compiler import Compiler
from funcaot.base.qualified_names import named
from funcaot.base.tracebacks import shortened, without_frames
from funcaot.classes.premise import PremiseFailed
from funcaot.derivatives.table import load_rules
from funcaot.errors import StageError, UnsupportedError

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class CompiledFunction(Generic[P, R]):
    """A function that is captured once per signature and runs compiled graphs after that.

    A call tries the code generated for the signature used last; then that of other signatures;
    then it reads its whole signature and looks it up; then it captures.

    Attributes:
        function: The user's function.
        settings: Backend, name, lock and counters.
        artifacts: Programs that another process saved, if calls look for them there.
        refusals: Calls that couldn't be captured.

    Example:
        >>> import funcaot, torch
        >>> f = funcaot.compile(torch.sin, backend="eager")
        >>> y = f(torch.ones(3))
        >>> len(f.entries), f.cache_hits
        (1, 0)
    """

    def __init__(self, function: Callable[P, R], settings: Settings) -> None:
        """Nothing is captured before the first call."""
        load_rules()
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.settings = settings
        self._cache = EntryCache(function, settings)
        self._history = SizeHistory(settings.dynamic)
        self._captures = OpenCaptures(function, settings, self._history)
        self.refusals = Refusals(settings.fullgraph)
        self._raised = RaisedCalls(settings)
        self._static: frozenset[str] = frozenset()
        self._stacks: Derived[Hashable, _TriedFunction] = Derived()
        self._sized: SizedCalls | None = None
        self._in_stages = settings.dynamic is not False
        self._grown = GrownCalls(function, settings, _TriedFunction)
        self.artifacts: Artifacts | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything captured so far, the newest last."""
        sized = () if self._sized is None else self._sized.program.entries
        found = (*self._cache.entries, *sized, *self._grown.entries)
        return tuple(sorted(found, key=lambda entry: entry.number))

    @property
    def cache_hits(self) -> int:
        """Calls that ran something compiled before."""
        calls = sum(entry.calls for stacked in self.stacked for entry in stacked.entries)
        return self._cache.hits + calls

    @property
    def stacked(self) -> tuple[CompiledFunction, ...]:
        """The function under transforms, compiled with them."""
        return tuple(self._stacks.values())

    def under(self, stack: Stack) -> CompiledFunction:
        """The function under transforms; it shares this one's counters and lock.

        Calling it raises `NotCapturedError` where that can't be captured.
        """
        found = self._stacks.get(stack.key)
        if found is not None:
            return found
        with self.settings.lock:
            found = self._stacks.get(stack.key)
            if found is None:
                settings = replace(self.settings, name=stack.named(self.settings.name))
                found = _TriedFunction(stack.over(self.function), settings)
                self._stacks[stack.key] = found
            return found

    def open_dimensions(self, dims: Sequence[frozenset[int]]) -> None:
        """Leave these dimensions of each argument open from the first compilation on."""
        self._history.always = dims

    def open_together(self, leaves: range, changed: Collection[int] = ()) -> None:
        """Leave all numbers among some leaves open once one has changed; others have already."""
        self._history.read = self._grown.read = leaves
        self._history.varied = changed

    def keep_static(self, names: frozenset[str]) -> None:
        """Leave nothing open of the arguments of these names, from the next compilation on."""
        kept = frozenset(self._static | names)
        self._static = kept
        self._grown.close()
        self._history.static = lambda tree: positions_of(self.function, tree, kept)

    def adopt(self, entry: Entry) -> None:
        """Keep a program of this function."""
        self._cache.add(entry)
        self._grown.note(entry)

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Write the programs that exist to a file, for ``funcaot.compile(..., artifacts=path)``.

        With a program go its executables and those of its backwards that have run, of any order.

        Args:
            path: The file; it is replaced as a whole.

        Returns:
            How many programs it holds, and what it doesn't and why.

        Raises:
            ArtifactError: If it can't be written or signed; what was there is unchanged.

        Example:
            >>> import funcaot, tempfile, torch
            >>> def function(x):
            ...     return x.sin().sum()
            >>> path = f"{tempfile.mkdtemp()}/programs"
            >>> f = funcaot.compile(function, backend="eager")
            >>> y = f(torch.ones(3))
            >>> f.save(path).programs
            1
            >>> g = funcaot.compile(function, backend="eager", artifacts=path)
            >>> y = g(torch.ones(3))
            >>> funcaot.report(g).cache_misses
            0
        """
        return save(path, self.entries)

    def warm_up(self, *args: Any, orders: int = 1, **kwargs: Any) -> None:
        """Compile what a call like this one and its derivatives will need.

        The function's Python code runs once, on tensors without values, as in any capture; a call
        that looks the same doesn't run it again. The graphs run once; no tensor is written to,
        nothing is stored and no random number is used up. Gradients are those of all results by
        all that requires grad.

        Args:
            *args: Arguments; a tensor on the device ``meta`` stands for one on the CPU.
            orders: How often to differentiate: 0 compiles the forward alone, 2 also the gradient
                of the gradient.
            **kwargs: Keyword arguments.

        Raises:
            UnsupportedError: For what can't be captured, and inside of a transform.
            FuncaotError: If ``orders`` is no such number.
            Exception: Whatever the function raises, unchanged.

        Example:
            >>> import funcaot, torch
            >>> f = funcaot.compile(lambda x: x.sin().sum(), backend="eager")
            >>> f.warm_up(torch.empty(3, requires_grad=True, device="meta"))
            >>> f(torch.ones(3, requires_grad=True)).backward()
            >>> funcaot.report(f).cache_misses, funcaot.report(f).backward_traces
            (1, 1)
        """
        warm_up.check(self.settings.name, orders)
        args, kwargs = tree_map(warm_up.on_the_cpu, (args, kwargs))
        signature, leaves = read_signature(self.settings.name, args, kwargs)
        with self.settings.lock, StateKept(), without_dynamo():
            find = partial(self._found, signature, leaves, (args, kwargs))
            warm_up.warm_calls(self.settings.name, find, leaves, orders)

    def _found(
        self, signature: Signature, leaves: list[Any], call: Call
    ) -> tuple[Entry, tuple[torch.Tensor, ...]]:
        """The program of a call, captured if there is none."""
        found = self._cache.find(signature, leaves) or self._loaded(signature, leaves)
        if found is None:
            if self.artifacts is not None:
                self.artifacts.is_first_step = False  # There is going to be a state.
            self.settings.statistics.cache_misses += 1
            found = self._captured(signature, leaves, call)
            self._cache.add(found[0])
        return found

    def clear(self) -> None:
        """Forget every captured program."""
        with self.settings.lock:
            self._cache.clear()
            self._history.clear()
            self.settings.numbers.clear()
            self.refusals.clear()
            self._raised.clear()
            self._stacks.clear()
            self._grown.clear()
            self._sized, self._in_stages = None, self.settings.dynamic is not False

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> CompiledFunction[P, R]: ...
    @overload
    def __get__(
        self: CompiledFunction[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an instance, so that a decorated method is called with its object."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; inside another capture, Dynamo's too, it is inlined."""
        if is_dynamo_compiling():
            return self.function(*args, **kwargs)
        result = self._cache.first(args, kwargs)
        return self._call(args, kwargs) if result is MISS else result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around = situation()
        if is_inlined(around, args, kwargs):
            return inline(self.function, self.settings.name, args, kwargs)
        try:
            if (result := self._cache.run_generated(args, kwargs)) is not MISS:
                return result
            with without_functions_of_classes():
                return self._run(around, args, kwargs)
        except EagerOnlyError as error:
            if isinstance(self.function, Answered) or self.settings.fullgraph:
                raise
            refused = self.refusals.untold(error)
        return self._call_plainly((args, kwargs), refused)

    def _run(self, around: Situation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._sized is not None and not (around.derives or has_acting_classes(args, kwargs)):
            return self._run_sized(args, kwargs)
        try:
            signature, leaves = read_signature(self.settings.name, args, kwargs)
        except UnsupportedError as error:
            if not self._runs_uncaptured(None, error):
                raise
            return self._call_plainly((args, kwargs), error)
        tried: list[Entry] = []
        while (found := self._cache.find(signature, leaves, tried)) is not None:
            entry, lifted = found
            entry.refuse_missing_memory(leaves, lifted)
            try:
                with entry.leaving():
                    result = entry(leaves, lifted, (args, kwargs))
            except PremiseFailed as failure:
                entry.left = str(failure)
                tried.append(entry)
                continue
            self._cache.hit(entry, leaves, lifted)
            return result
        self.refusals.check(signature)
        try:
            why = partial(self._cache.why_missed, signature, leaves, tried)
            result = self._grown.run(leaves, args, kwargs, why)
            if result is not MISS:
                return result
            return self._capture_and_run(signature, leaves, (args, kwargs), tried)
        except Exception as error:  # noqa: BLE001 (it is raised again)
            raise shortened(error)  # noqa: B904 (it is the same error)

    def _capture_and_run(
        self, signature: Signature, leaves: list[Any], call: Call, tried: Sequence[Entry]
    ) -> Any:
        if self._runs_plainly(signature):
            return self._call_watched(signature, call, None)
        raised: Exception | None = None
        with self.settings.lock, StateKept(), without_dynamo():
            found = self._cache.find(signature, leaves, tried) or self._loaded(signature, leaves)
            if found is None:
                self.settings.statistics.cache_misses += 1
                reason = self._cache.why_missed(signature, leaves, tried)
                reason = reason or getattr(self.artifacts, "why", "")
                if reason and not getattr(self.artifacts, "is_first_step", False):
                    show_recompile(self.settings.name, reason)
                answers = self._answers(leaves)
                try:
                    with answering(answers):
                        found = self._captured(signature, leaves, call)
                    if answers is not None and answers.reached is not None:
                        raise SizesNeededError  # The function caught it.
                except FirstStepError as error:
                    raised = self.refusals.of_first_step(self.settings.name, without_frames(error))
                except SizesNeededError:
                    self.settings.statistics.cache_misses -= 1
                    if isinstance(self.function, Answered):
                        raise
                    return self._run_sized(*call)
                except Exception as failed:  # noqa: BLE001 (it is raised again)
                    error = self.refusals.noted(signature, failed)
                    if not (is_of_function(error) or self._runs_uncaptured(signature, error)):
                        raise error  # noqa: B904 (it is the same, or was made in its place)
                    raised = without_frames(error)
                if found is not None:
                    self.refusals.first_steps = 0
                    found[0].reason, found[0].made_for = reason, signature
                    self.adopt(found[0])
        if found is None:
            return self._call_watched(signature, call, raised)
        entry, lifted = found
        entry.refuse_missing_memory(leaves, lifted)
        try:
            with entry.leaving():
                return entry(leaves, lifted, call)
        except (StageError, SizeError) as error:
            if not (entry.is_general or entry.numbers_read) or entry.calls:
                raise
            failure = error
        except PremiseFailed as other:
            raise UnsupportedError(
                f"{self.settings.name} was compiled for values that the same call then didn't "
                f"have: {other}.",
                remedy="under vmap, shapes and numbers have to be the same for each example; "
                "otherwise keep what reads values outside of the compiled function.",
            ) from None
        finally:
            entry.capture.tape.forget_values()
        self._cache.discard(entry)
        self._captures.close(entry, signature, leaves, failure)
        return self._capture_and_run(signature, leaves, call, ())

    def _runs_plainly(self, signature: Signature) -> bool:
        """Whether a call isn't captured, since captures of others like it failed."""
        return self.refusals.stand(signature) or self._raised.lets_by(signature)

    def _runs_uncaptured(self, signature: Signature | None, error: Exception) -> bool:
        """Whether a refused call runs as it is; what a stage refuses, the whole does."""
        return not isinstance(self.function, Answered) and self.refusals.allow(signature, error)

    def _call_plainly(self, call: Call, raised: Exception | None) -> Any:
        if raised is not None and isinstance(self.function, Answered):
            raise RaisedInCaptureError from raised
        return call_plainly(self.function, self.settings.name, call, raised)

    def _call_watched(self, signature: Signature, call: Call, raised: Exception | None) -> Any:
        """Make a call as it is, and note whether it raises; a stage leaves that to the whole."""
        if raised is not None and not is_of_function(raised):
            return self._call_plainly(call, raised)
        watch = partial(self._raised.watch, signature, raised is not None)
        if isinstance(self.function, Answered):
            raise RaisedInCaptureError(watch) from raised
        return watch(partial(self._call_plainly, call, raised))

    def _loaded(
        self, signature: Signature, leaves: list[Any]
    ) -> tuple[Entry, tuple[torch.Tensor, ...]] | None:
        """The program of a call that another process saved."""
        if self.artifacts is None or functorch.under_transforms(leaves):
            return None
        found = self.artifacts.find(self.function, signature, leaves, self.settings)
        if found is not None:
            self._history.note(signature)  # Another size next time is a change.
            self._cache.add(found[0])
        return found

    def _captured(
        self, signature: Signature, leaves: list[Any], call: Call
    ) -> tuple[Entry, tuple[torch.Tensor, ...]]:
        """Capture a call, with open sizes and numbers where that is asked for and possible."""
        if self.artifacts is not None and self.artifacts.is_first_step:
            raise FirstStepError(STEPS_FIRST)
        values = self._cache.that_read_values
        entry, lifted = self._captures.capture(signature, leaves, call, values)
        return without_effects(entry) if self.settings.is_stage else entry, lifted

    def _answers(self, leaves: list[Any]) -> Answers | None:
        """What a capture asks where values decide a size; without one they are asked."""
        if not self._in_stages or isinstance(self.function, Answered):
            return None
        return None if functorch.under_transforms(leaves) else Answers(())

    def _run_sized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call in which values decide sizes."""
        with self.settings.lock:
            if self._sized is None:
                self._sized = SizedCalls(self.function, self.settings, CompiledFunction)
        try:
            return self._sized(args, kwargs)
        except RaisedInCaptureError as error:
            raised, watch = error.__cause__, error.watch
        except (NotStagedError, UnsupportedError) as error:
            if isinstance(error, UnsupportedError) and self.refusals.are_errors:
                raise
            self._sized, self._in_stages = None, False
            return self._run(situation(), args, kwargs)
        call = args, kwargs
        return watch(partial(call_plainly, self.function, self.settings.name, call, raised))

    def size_refusal(self, signature: Signature) -> str | None:
        """Why calls like this one are compiled for their own sizes, if something forbids more."""
        return self._history.reason(signature)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name where that is this object, as a function; else it compiles anew there."""
        name = getattr(self, "__qualname__", "")
        if named(getattr(self, "__module__", None), name) is self:
            return name
        kept = self.settings
        given = self.function, kept.compiler, kept.name, kept.policy, kept.dynamic
        return compiled_function, (*given, kept.fullgraph)

    def __repr__(self) -> str:
        """One line."""
        name, made = self.settings.name, self.settings.statistics.graphs_compiled
        return f"<funcaot compiled {name}: {len(self.entries)} entries, {made} graphs>"


class _TriedFunction(CompiledFunction):
    """What a call goes through if it can be captured like that, and past if it can't."""

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        super().__init__(function, settings)
        self._in_stages = False
        self._refused: Derived[Signature, bool] = Derived()

    def _capture_and_run(
        self, signature: Signature, leaves: list[Any], call: Call, tried: Sequence[Entry]
    ) -> Any:
        if signature in self._refused:
            raise NotCapturedError
        return super()._capture_and_run(signature, leaves, call, tried)

    def _captured(
        self, signature: Signature, leaves: list[Any], call: Call
    ) -> tuple[Entry, tuple[torch.Tensor, ...]]:
        try:
            return super()._captured(signature, leaves, call)
        except FirstStepError:
            raise
        except Exception as error:
            self._refused[signature] = True
            raise NotCapturedError from error


def compiled_function(
    function: Callable[P, R],
    compiler: Compiler,
    name: str,
    policy: Policy,
    dynamic: bool | None,
    fullgraph: bool | None = None,
) -> CompiledFunction[P, R]:
    """A function that is compiled when it's called; nothing is captured before."""
    return CompiledFunction(function, Settings(compiler, name, policy, dynamic, fullgraph))
