"""All cases, in the order of the docs page."""

from __future__ import annotations

from tests.silent_errors import (
    custom_functions,
    derivatives,
    hooks,
    modes,
    results,
    state,
    values,
    writes,
    writes_and_gradients,
)
from tests.silent_errors.records import Case, Group

GROUPS: tuple[Group, ...] = (
    custom_functions.GROUP,
    derivatives.GROUP,
    hooks.GROUP,
    writes.GROUP,
    writes_and_gradients.GROUP,
    results.GROUP,
    values.GROUP,
    values.ERRORS,
    state.GROUP,
    modes.GROUP,
)

CASES: tuple[Case, ...] = tuple(case for group in GROUPS for case in group.cases)
