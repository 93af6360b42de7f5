"""``check``: try a Function under every transform and say what works, as a table."""

from __future__ import annotations

from funcaot.testing.check.result import CheckResult, Row
from funcaot.testing.check.runner import check

__all__ = ["CheckResult", "Row", "check"]
