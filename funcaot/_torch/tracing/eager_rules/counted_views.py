"""Views in inference mode of tensors that were made outside; ``FunctionalMode`` asks here.

Such a view counts what is written to it together with its base. Torch lets it do so after the
dispatch of a class has made it, and can't where that was made in inference mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.levels.inference import outside_inference_mode
from funcaot.base.scopes import untraced

__all__ = ["counted_view"]


def counted_view(
    mode: Any, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of such an op, or ``NotImplemented`` for another one.

    Args:
        mode: The functional mode.
        func: The op, below autograd.
        types: Classes of its arguments.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.
    """
    if not (torch.is_inference_mode_enabled() and getattr(func, "is_view", False)):
        return NotImplemented
    viewed = next((value for value in args if isinstance(value, torch.Tensor)), None)
    if viewed is None or viewed.is_inference():
        return NotImplemented
    if not _has_kernel(func.name(), "CompositeImplicitAutograd"):
        with outside_inference_mode():
            return mode.__torch_dispatch__(func, types, args, kwargs)
    # Outside it would have been taken apart above this dispatch, where views are counted.
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    excluded = excluded.remove(torch._C.DispatchKey.ADInplaceOrView)
    above = torch._C._ForceDispatchKeyGuard(included, excluded)
    with untraced(), torch._C.DisableTorchFunction(), above, mode:
        return func.decompose(*args, **kwargs)


_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
