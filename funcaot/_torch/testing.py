"""torch's own test databases, which are private: the only place that imports them.

They load about a thousand modules; import this only where one of them is used.
"""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    # Some of the modules that they load use what torch itself has deprecated.
    warnings.simplefilter("ignore")
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

__all__ = ["OpInfo", "SampleInput", "autograd_functions", "operators"]


def autograd_functions() -> tuple[Any, ...]:
    """torch's database of ``autograd.Function`` classes, as ``OpInfo`` records."""
    return tuple(autograd_function_db)


def operators() -> tuple[Any, ...]:
    """torch's database of operators, as ``OpInfo`` records."""
    return tuple(op_db)
