"""Reports: what was compiled, kept and traced."""

from __future__ import annotations

from funcaot.report.build import report
from funcaot.report.records import Report

__all__ = ["Report", "report"]
