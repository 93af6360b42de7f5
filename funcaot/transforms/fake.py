"""The rule for fake tensors: the user's ``abstract`` staticmethod, or forward on fakes."""

from __future__ import annotations

from typing import Any

from funcaot._torch.levels.functorch import FakeTensorMode
from funcaot.operator.operator import custom_function_call


def fake_rule(mode: FakeTensorMode, function: type, *operands: Any) -> Any:
    """Compute the metadata of the output."""
    abstract = getattr(function, "abstract", None)
    with mode:
        return function.forward(*operands) if abstract is None else abstract(*operands)


custom_function_call.py_impl(FakeTensorMode)(fake_rule)
