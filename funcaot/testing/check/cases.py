"""Rows of a check as generated tests: what ``parametrize_transforms`` gives beside transforms."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from funcaot.errors import PrecisionWarning
from funcaot.testing.check.probes.probe import PASSES, UNSUPPORTED, WARNS, Probe
from funcaot.testing.check.rows import PROBES, probes_of, samples_for, word_of
from funcaot.testing.generator import Generated, Mismatch
from funcaot.testing.records import FunctionInfo

# Finite differences need double precision.
MEASURED = (torch.float64, torch.complex128)


@dataclass(frozen=True)
class RowCase(Generated):
    """One row of a check for one Function, on the samples of a dtype.

    Attributes:
        info: The Function.
        probe: The row.
        dtype: The dtype of the differentiable tensors.
        device: Where the tensors are.
    """

    info: FunctionInfo
    probe: Probe
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The row's name as one word: ``second_order``."""
        return word_of(self.probe)

    @property
    def id(self) -> str:
        """``MySoftmax-second_order-float64-cpu``."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.info.name}-{self.name}-{dtype}-{self.device}"

    def run(self) -> None:
        """Tries the row on each sample.

        Raises:
            Mismatch: Something is wrong; the message says on which sample, and what to do.
        """
        samples = list(self.info.sample_inputs(self.device, self.dtype))
        for sample in samples_for(self.probe, samples):
            found = self.probe.run(self.info, sample)
            if found is None or found.status in (PASSES, UNSUPPORTED):
                continue
            message = f"{self.id}: {found.detail} (on {sample!r})\nInstead: {found.remedy}"
            if found.status != WARNS:
                raise Mismatch(message)
            warnings.warn(message, PrecisionWarning, stacklevel=2)

    def explain(self) -> str:
        """How to run it again."""
        return (
            f"{self.info.name}, row {self.probe.name!r} of funcaot.testing.check\n\n"
            f"again: pytest -k {self.info.name} --funcaot-transforms={self.name}"
        )

    def __repr__(self) -> str:
        """The id."""
        return f"RowCase({self.id})"


ROW_NAMES = tuple(word_of(probe) for probe in PROBES)


def row_cases(
    infos: Iterable[FunctionInfo], names: Sequence[str] | None = None, *, device: str = "cpu"
) -> Iterator[RowCase]:
    """The rows of some Functions.

    Args:
        infos: The Functions.
        names: Which rows, as words; all by default.
        device: Where the tensors are.
    """
    for info in infos:
        for dtype in info.dtypes:
            if dtype in MEASURED and any(info.sample_inputs(device, dtype)):
                for probe in probes_of(info):
                    if names is None or word_of(probe) in names:
                        yield RowCase(info, probe, dtype, device)
                break
