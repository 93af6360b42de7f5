"""torch's own test databases, which are private: the only place that imports them.

They load about a thousand modules; import this only where one of them is used.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

with warnings.catch_warnings():
    # Some of the modules that they load use what torch itself has deprecated.
    warnings.simplefilter("ignore")
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def _without_seed(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


# Random operators are wrapped to seed themselves at each call, which is Python that no capture
# sees; the tests seed outside instead.
for _module in [module for name, module in sys.modules.items() if name.startswith("torch.testing")]:
    if hasattr(_module, "wrapper_set_seed"):
        vars(_module)["wrapper_set_seed"] = _without_seed

__all__ = ["OpInfo", "SampleInput", "autograd_functions", "modules", "operators"]


def autograd_functions() -> tuple[Any, ...]:
    """Torch's database of ``autograd.Function`` classes, as ``OpInfo`` records."""
    return tuple(autograd_function_db)


def operators() -> tuple[Any, ...]:
    """Torch's database of operators, as ``OpInfo`` records."""
    return tuple(op_db)


def modules() -> tuple[Any, ...]:
    """Torch's database of modules, as ``ModuleInfo`` records."""
    from torch.testing._internal.common_modules import module_db

    return tuple(module_db)
