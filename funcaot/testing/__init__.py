"""Generated tests for Functions: point it at yours and get the matrix of what works.

Example:
    A test file that checks a Function under every transform::

        import torch
        from funcaot.testing import opinfo, parametrize_transforms
        from mine import MyFunction

        SAMPLES = [torch.rand(3, dtype=torch.float64, requires_grad=True)]

        @parametrize_transforms([opinfo(MyFunction, SAMPLES)])
        def test_my_function(case):
            case.run()
"""

from __future__ import annotations

from funcaot.testing.check import CheckResult, Row, check
from funcaot.testing.composition import Composition
from funcaot.testing.generator import Case, Mismatch
from funcaot.testing.parametrize import parametrize_transforms
from funcaot.testing.records import FunctionInfo, Limitation, Sample, opinfo
from funcaot.testing.transforms.record import Transform

__all__ = [
    "Case",
    "CheckResult",
    "Composition",
    "FunctionInfo",
    "Limitation",
    "Mismatch",
    "Row",
    "Sample",
    "Transform",
    "check",
    "opinfo",
    "parametrize_transforms",
]
