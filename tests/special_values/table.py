"""All groups of cases, in the order of the page."""

from __future__ import annotations

from tests.special_values import elementwise, foldings, reductions

GROUPS = (*foldings.GROUPS, *elementwise.GROUPS, *reductions.GROUPS)
