"""The rows of a check in the order in which they are shown, and which of them a Function has."""

from __future__ import annotations

from collections.abc import Sequence

from funcaot.testing.check.probes.accumulation import ACCUMULATION
from funcaot.testing.check.probes.complex_inputs import COMPLEX
from funcaot.testing.check.probes.orders import ORDERS, RULES
from funcaot.testing.check.probes.probe import EVERY, SMALLEST, Probe
from funcaot.testing.check.probes.properties import MEMORY, PROPERTIES
from funcaot.testing.check.probes.rules_used import RULES_USED
from funcaot.testing.check.probes.tangents import TANGENTS
from funcaot.testing.check.variants import plain, smallest
from funcaot.testing.records import FunctionInfo, Sample

PROBES: tuple[Probe, ...] = (
    *RULES,
    *RULES_USED,
    *PROPERTIES,
    *ACCUMULATION,
    *TANGENTS,
    *ORDERS,
    *COMPLEX,
    *MEMORY,
)


def word_of(probe: Probe) -> str:
    """A row's name as one word."""
    return probe.name.replace(" ", "_")


def probes_of(info: FunctionInfo) -> list[Probe]:
    """The rows that mean something for a Function."""
    return [probe for probe in PROBES if is_meant(probe, info)]


def is_meant(probe: Probe, info: FunctionInfo) -> bool:
    """Whether the Function has the rules that a row is about, and promises what it tests."""
    if not all(getattr(info, f"supports_{need}") for need in probe.needs):
        return False
    if probe.linear and not info.linear_backward:
        return False
    return probe not in RULES or info.ref is not None or info.true_derivative


def samples_for(probe: Probe, samples: Sequence[Sample]) -> list[Sample]:
    """The samples that a row is tried on."""
    if probe.samples == EVERY:
        return list(samples)
    return smallest(samples) if probe.samples == SMALLEST else plain(samples)
