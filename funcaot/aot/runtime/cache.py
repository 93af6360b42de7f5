"""The entries of one compiled function: found by signature, least recently used dropped first."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from funcaot import config
from funcaot._torch.levels import functorch
from funcaot._torch.tensors.pytree import too_deep
from funcaot.aot.graph.location import warn_user
from funcaot.aot.graph.settings import Settings
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.runtime.generated import fast_call
from funcaot.aot.runtime.generated.fast_call import FastCall
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.what_changed import describe_changes, differences
from funcaot.errors import RecompileWarning

_REGENERATIONS = 4
_PROGRAMS_FOR_VALUES = 8
_EXPLAINED = 4
_TOLD = 4


class EntryCache:
    """Entries with the code generated for those used last.

    Attributes:
        first: The generated call of the entry that was used last.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        """Start empty."""
        self.first: FastCall = fast_call.always_miss
        self._function = function
        self._settings = settings
        self._buckets: dict[Signature, tuple[Entry, ...]] = {}
        self._general: tuple[Entry, ...] = ()
        self._order: OrderedDict[Entry, int] = OrderedDict()
        self._chain: tuple[tuple[FastCall, Entry], ...] = ()
        self._warned = self._warned_of_values = self._warned_of_many = False
        _caches.add(self)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything kept, oldest first."""
        return tuple(entry for bucket in list(self._buckets.values()) for entry in bucket)

    @property
    def that_read_values(self) -> list[Signature]:
        """What calls looked like of which a derivative was traced for values that it has read."""
        found = [entry for entry in self.entries if entry.functions.reads_values]
        return [entry.made_for or entry.signature for entry in found]

    @property
    def hits(self) -> int:
        """Calls that found an entry."""
        return self._settings.statistics.cache_hits + sum(entry.calls for entry in self.entries)

    def run_generated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Try the generated calls after the first; the one that takes the call becomes first."""
        for call, entry in self._chain[1:]:
            result = call(args, kwargs)
            if result is not fast_call.MISS:
                self._put_first(call, entry)
                return result
        return fast_call.MISS

    def find(
        self, signature: Signature, leaves: Sequence[Any], tried: Sequence[Entry] = ()
    ) -> tuple[Entry, tuple[torch.Tensor, ...]] | None:
        """The entry of a call and the tensors that it closes over now.

        Args:
            signature: The call's signature.
            leaves: Its flat leaves.
            tried: Entries that the call left, since they were made for other values.
        """
        for entry in self._candidates(signature, leaves):
            if entry in tried:
                continue
            lifted = entry.lifted(self._function, leaves)
            if lifted is not None and entry.fits(leaves, lifted):
                return entry, lifted
        return None

    def why_missed(
        self, signature: Signature, leaves: Sequence[Any], tried: Sequence[Entry] = ()
    ) -> str:
        """Why no entry serves a call, in words; empty if it is the first one.

        Args:
            signature: The call's signature.
            leaves: Its flat leaves.
            tried: Entries that the call left, since they were made for other values.
        """
        if tried:
            return f"a value that it reads is another one: {tried[0].left}"
        differing = [
            (differences(entry.nearest(signature), signature, self._function), entry)
            for entry in reversed(self._order)
        ]
        differing.sort(key=lambda pair: _likeness(pair[1], signature, pair[0]))
        told = [
            (found[:_TOLD] + self._environment(entry, signature, leaves), entry)
            for found, entry in differing[:_EXPLAINED]
        ]
        told.sort(key=lambda pair: _likeness(pair[1], signature, pair[0]))
        return "; ".join(told[0][0]) if told else ""

    def _environment(self, entry: Entry, signature: Signature, leaves: Sequence[Any]) -> list[str]:
        """What isn't as it was besides the signature, if that can be told."""
        if entry.matches(signature):
            return [entry.explain(self._function, leaves)]
        if entry.signature.tree != signature.tree:
            return []
        changed = entry.changed_around(self._function, leaves)
        return [changed] if changed else []

    def _candidates(self, signature: Signature, leaves: Sequence[Any]) -> Iterator[Entry]:
        """Entries of a signature; then open ones, made on the same side of transforms."""
        try:
            alike = self._buckets.get(signature, ())
        except RecursionError:  # from the comparison of two structures
            raise too_deep() from None
        yield from alike
        if not self._general:
            return
        is_below = not functorch.under_transforms(leaves)
        for entry in self._general:
            numbers = entry.numbers if entry.sizes is None else None
            serves = is_below or (numbers is not None and numbers.log.is_at_level)
            if serves and entry.matches(signature):
                yield entry

    def hit(self, entry: Entry, leaves: list[Any], lifted: tuple[torch.Tensor, ...]) -> None:
        """Note that the general path found an entry: generate code for it, or do so again.

        Generated code that didn't take the call may compare more than the signature does (the
        number of threads is in torch's global guard), so it is made again a few times.
        """
        entry.calls += 1
        with self._settings.lock:
            if entry not in self._order:
                return
            self._order.move_to_end(entry)
            if entry.premises:
                self._ask_first(entry)
            if not config.get().fast_path or entry.generations >= _REGENERATIONS:
                return
            call = fast_call.generate(entry, self._function, lifted, leaves)
            if call is not None:
                entry.generations += 1
                self._put_first(call, entry)

    def _ask_first(self, entry: Entry) -> None:
        """Let calls try a program before those that were made for other values."""

        def moved(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
            return (entry, *(other for other in entries if other is not entry))

        alike = self._buckets.get(entry.signature, ())
        if entry in alike and alike[0] is not entry:
            self._buckets[entry.signature] = moved(alike)
        if entry in self._general and self._general[0] is not entry:
            self._general = moved(self._general)

    def add(self, entry: Entry) -> None:
        """Keep an entry, and drop those beyond the bounds."""
        with self._settings.lock:
            for known in self.entries:
                if known.signature.is_dead:
                    self.discard(known)
            bound = config.get().entries_per_function
            while self._order and len(self._order) >= max(bound, 1):
                self._warn(entry, bound)
                self.discard(next(iter(self._order)))
            self._warn_of_many(entry)
            self._order[entry] = 0
            self._warn_of_values(entry)
            if entry.is_general:
                self._general = (entry, *self._general)
            self._buckets[entry.signature] = (*self._buckets.get(entry.signature, ()), entry)
        _sweep(self, entry)

    def discard(self, entry: Entry) -> None:
        """Drop an entry."""
        with self._settings.lock:
            if self._order.pop(entry, None) is None:
                return
            self._general = tuple(kept for kept in self._general if kept is not entry)
            # Once an object in it is gone, a signature is equal to no other one any more.
            found = (key for key, kept in self._buckets.items() if entry in kept)
            key = entry.signature if entry.signature in self._buckets else next(found)
            left = tuple(kept for kept in self._buckets[key] if kept is not entry)
            if left:
                self._buckets[key] = left
            else:
                del self._buckets[key]
            self._settings.statistics.cache_hits += entry.calls
            self._set_chain(tuple(pair for pair in self._chain if pair[1] is not entry))

    def clear(self) -> None:
        """Drop everything."""
        with self._settings.lock:
            for entry in self.entries:
                self.discard(entry)
            self._warned = self._warned_of_values = self._warned_of_many = False

    def drop_generated(self) -> None:
        """Take the general path from now on."""
        with self._settings.lock:
            for _, entry in self._chain:
                entry.generations = 0
            self._set_chain(())

    def renew_lock(self) -> None:
        """Replace the lock of everything derived from this function, after a fork."""
        object.__setattr__(self._settings, "lock", threading.RLock())

    def _put_first(self, call: FastCall, entry: Entry) -> None:
        with self._settings.lock:
            if entry in self._order:
                self._order.move_to_end(entry)
                others = tuple(pair for pair in self._chain if pair[1] is not entry)
                bound = max(config.get().fast_calls, 1)
                self._set_chain(((call, entry), *others)[:bound])

    def _set_chain(self, chain: tuple[tuple[FastCall, Entry], ...]) -> None:
        self._chain = chain
        self.first = chain[0][0] if chain else fast_call.always_miss

    def _for_other_values(self, entry: Entry) -> list[Entry]:
        """The programs that serve the call of a new one, but for the values that they read."""
        alike = dict.fromkeys(self._buckets.get(entry.signature, ()))
        if entry.made_for is not None:
            served = (known for known in self._general if known.matches(entry.made_for))
            alike.update(dict.fromkeys(served))
        return [known for known in alike if known.premises and known is not entry]

    def _warn_of_values(self, entry: Entry) -> None:
        """Say once that programs are made for values that keep changing."""
        alike = len(self._for_other_values(entry))
        if alike < _PROGRAMS_FOR_VALUES or self._warned_of_values:
            return
        self._warned_of_values = True
        warn_user(
            f"{self._settings.name} has been compiled {alike + 1} times for calls that differ in "
            f"values only, which it reads: {'; '.join(entry.premises)}. Compute with the tensor "
            "itself, or keep that part outside; funcaot.config's specialize_on_values=False makes "
            "it an error.",
            RecompileWarning,
        )

    def _warn_of_many(self, entry: Entry) -> None:
        """Say once that calls keep being compiled, and why."""
        bound = config.get().recompile_warning
        if not bound or len(self._order) < bound or self._warned_of_many:
            return
        self._warned_of_many = True
        warn_user(
            f"{self._settings.name} has been compiled for {len(self._order)} different calls, and "
            f"now for one more. {self._changing(entry)} Keep it fixed or pass a tensor; "
            "funcaot.mark_dynamic leaves sizes open; "
            "funcaot.config.set(recompile_warning=...) says how many are too many.",
            RecompileWarning,
        )

    def _warn(self, entry: Entry, bound: int) -> None:
        if self._warned:
            return
        self._warned = True
        warn_user(
            f"{self._settings.name} has been compiled for {bound} different calls, and one more "
            f"drops the least recently used. {self._changing(entry)} Keep that fixed, "
            "make it a tensor, or raise funcaot.config.set(entries_per_function=...).",
            RecompileWarning,
        )

    def _changing(self, entry: Entry) -> str:
        new = entry.made_for or entry.signature
        known = [kept.nearest(new) for kept in self._order if kept is not entry]
        if new in known or self._for_other_values(entry):
            return f"What changed this time: {entry.reason}."
        return f"What keeps changing: {describe_changes(known, new, self._function)}."


def _likeness(entry: Entry, signature: Signature, told: Sequence[str]) -> tuple[bool, int]:
    """How unlike a call the one is that an entry serves; of another structure, it isn't like it."""
    return entry.signature.tree != signature.tree, len(told)


# --- all functions together ---------------------------------------------------------------------

_caches: weakref.WeakSet[EntryCache] = weakref.WeakSet()
_lock = threading.Lock()
# Each with the number of calls when it was last looked at: one that was called since gets another
# round, so the order is nearly that of last use and a call has nothing to write down but a count.
_all: deque[tuple[weakref.ref[EntryCache], weakref.ref[Entry], int]] = deque()


def _sweep(cache: EntryCache, entry: Entry) -> None:
    with _lock:
        _all.append((weakref.ref(cache), weakref.ref(entry), entry.calls))
        while _all and _all[0][1]() is None:
            _all.popleft()
        dropped: list[tuple[EntryCache, Entry]] = []
        rounds = 2 * len(_all)
        while len(_all) > max(config.get().entries_in_all, 1) and rounds:
            rounds -= 1
            owner_reference, reference, calls = _all.popleft()
            owner, known = owner_reference(), reference()
            if owner is None or known is None:
                continue
            if known is entry or known.calls != calls:
                _all.append((owner_reference, reference, known.calls))
            else:
                dropped.append((owner, known))
    for owner, known in dropped:
        owner.discard(known)


def has_caches() -> bool:
    """Whether there is a compiled function."""
    return bool(len(_caches))


def clear_all() -> None:
    """Drop the entries of every compiled function.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.compile(torch.sin, backend="eager")
        >>> y = f(torch.ones(3))
        >>> funcaot.clear()
        >>> len(funcaot.report(f).entries)
        0
    """
    for cache in list(_caches):
        cache.clear()


def _configured(config_now: config.Config) -> None:
    if not config_now.fast_path:
        for cache in list(_caches):
            cache.drop_generated()


config.on_change(_configured)


def _renew_locks() -> None:
    """In a forked child: locks that a thread of the parent held have nobody to release them."""
    global _lock
    _lock = threading.Lock()
    for cache in list(_caches):
        cache.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
