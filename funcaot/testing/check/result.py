"""What a check found: one row per transform and per property, and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from funcaot.testing.check.probes.probe import ERROR, PASSES, UNSUPPORTED, WARNS, WRONG
from funcaot.testing.generator import Mismatch

__all__ = ["ERROR", "FAILING", "PASSES", "UNSUPPORTED", "WARNS", "WRONG", "CheckResult", "Row"]

FAILING = frozenset({WRONG, ERROR})


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: The transform or the property.
        status: ``passes``, ``warns`` (it is imprecise, or wrong where it may not be meant to work),
            ``wrong`` (it ran, with a wrong result), ``unsupported`` (a rule is missing) or
            ``error`` (anything else was raised).
        largest_error: How far it was from the oracle: relative in the rows about derivatives,
            absolute elsewhere; None where no number was compared.
        detail: What is wrong or missing.
        remedy: What to do about it.
        seconds: How long it took.
        compiled: The status of the same row for the compiled callable, differentiated where it can
            be; empty where the row says nothing about that.
        file: Where the rule that the row is about is defined.
        line: The line there; 0 where it isn't known.

    Example:
        >>> import torch
        >>> from funcaot.testing import check
        >>> row = check(torch.sin, transforms=["vmap"]).row("vmap")
        >>> row.status, row.compiled, row.largest_error
        ('passes', 'passes', 0.0)
    """

    name: str
    status: str
    largest_error: float | None = None
    detail: str = ""
    remedy: str = ""
    seconds: float = 0.0
    compiled: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class CheckResult:
    """Everything that ``check`` found about a Function; prints as a table.

    Attributes:
        name: The Function.
        samples: A line for each sample that was used.
        rows: Properties first, then transforms.
        seed: Of the random inputs.
        left_out: Kinds of arguments that the Function doesn't take, and why.
        range: What the values of the samples have among them.

    Example:
        >>> import torch
        >>> from funcaot.testing import check
        >>> result = check(torch.sin, transforms=["gradient", "vmap"])
        >>> result.ok, [row.name for row in result.rows], result.failures()
        (True, ['gradient', 'vmap'], ())
    """

    name: str
    samples: tuple[str, ...]
    rows: tuple[Row, ...]
    seed: int
    left_out: tuple[str, ...] = ()
    range: str = ""

    @property
    def ok(self) -> bool:
        """No wrong result and no error; a missing rule is not a failure."""
        return not any(row.status in FAILING for row in self.rows)

    def warnings(self) -> tuple[Row, ...]:
        """The rows that don't make the check fail and want to be looked at."""
        return tuple(row for row in self.rows if row.status == WARNS)

    def failures(self) -> tuple[Row, ...]:
        """The rows that make the check fail."""
        return tuple(row for row in self.rows if row.status in FAILING)

    def row(self, name: str) -> Row:
        """The row of this transform or property.

        Raises:
            KeyError: There is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name}: not among {', '.join(row.name for row in self.rows)}")

    def raise_for_failures(self) -> None:
        """Does nothing if the check passed.

        Raises:
            Mismatch: It did not; the message lists the failing rows.
        """
        if self.ok:
            return
        lines = [f"{self.name} fails {len(self.failures())} of {len(self.rows)} checks:"]
        for row in self.failures():
            lines.append(f"  {row.name}: {row.status}. {row.detail}")
            lines += [f"    Instead: {row.remedy}"] if row.remedy else []
        raise Mismatch("\n".join(lines))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "name": self.name,
            "ok": self.ok,
            "seed": self.seed,
            "samples": list(self.samples),
            "left_out": list(self.left_out),
            "range": self.range,
            "rows": [asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        """The table as plain text."""
        from funcaot.testing.check.rendering import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from funcaot.testing.check.rendering import as_fragment

        return as_fragment(self)

    def __repr__(self) -> str:
        """One line."""
        passed = sum(row.status == PASSES for row in self.rows)
        return f"CheckResult({self.name}: {passed} of {len(self.rows)} pass, ok={self.ok})"
