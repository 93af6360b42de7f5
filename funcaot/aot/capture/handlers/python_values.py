"""What Python makes of tensors' numbers in a capture: lists, texts, copies.

Torch does these things in memory, which the tape's tensors don't have. What a tensor says of its
numbers is read off the present call's values, and is a premise of the program (``premises``).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tensors.pytree import tree_flatten, tree_map
from funcaot._torch.tensors.sizes.called_kinds import (
    has_whole_numbers,
    is_whole_number,
    note_caller,
)
from funcaot._torch.tensors.sizes.number_log import settled
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.graph import graphs
from funcaot.aot.graph.location import warn_user
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.aot.tape.known import made_of_numbers, read_numbers, sizes_of_values
from funcaot.aot.tape.known.premises import numbers_in
from funcaot.classes import premise
from funcaot.errors import CaptureWarning

__all__ = [
    "as_lists",
    "as_text",
    "assembled",
    "assembled_like",
    "copied",
    "formatted",
    "known_number",
    "number",
    "whole_number",
]

# Floats of a list that stay, each by itself.
_FEW = 32
_DTYPES = {torch.SymInt: torch.int64, torch.SymBool: torch.bool}
_OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)


def as_lists(call: Call, capture: InProgress) -> Any:
    """``tolist``: whole numbers of a short list are brought, floats stay in the graph.

    A long list is one premise.
    """
    (tensor,) = call.args
    if tensor.is_floating_point() and _may_stay(tensor) and tensor.numel() <= _FEW:
        found = _floats_in(tensor)
        if found is not NotImplemented:
            return found
    if tensor.dim() and (known := _made_of_numbers(tensor, capture)) is not None:
        return known
    given = _answers_for(tensor, capture)
    if given is not None and tensor.dim():
        found = given.numbers(tensor)
        if found is not NotImplemented:
            return found
    return _read_as_lists(tensor)


def _floats_in(tensor: torch.Tensor) -> Any:
    """The floats in a tensor in lists, or ``NotImplemented`` if they are to be read."""
    if not tensor.dim():
        return read_numbers.number_off(tensor)
    rows = [_floats_in(row) for row in tensor.detach()]
    return NotImplemented if any(row is NotImplemented for row in rows) else rows


def _read_as_lists(tensor: torch.Tensor) -> Any:
    found = numbers_in(tensor)
    if found is not NotImplemented:
        return found
    return [_read_as_lists(row) for row in tensor] if tensor.dim() else tensor.item()


def number(call: Call, capture: InProgress) -> Any:
    """``item()``, ``int()`` and ``float()``.

    A whole number may become a size: the caller brings it. A float stays in the graph.
    """
    (tensor,) = call.args
    if call.func is torch.Tensor.__float__:
        if (tensor.is_floating_point() or is_whole_number(tensor)) and _may_stay(tensor):
            note_caller("float")  # The next capture of that code finds another ``float``.
        return NotImplemented
    if call.func is torch.Tensor.item and tensor.is_floating_point():
        return read_numbers.number_off(tensor) if _may_stay(tensor) else NotImplemented
    if call.func is torch.Tensor.item:
        return whole_number(tensor, capture)
    if (known := known_number(tensor, capture)) is not None:
        note_caller("int")
        return int(known)
    given = _answers_for(tensor, capture) if is_whole_number(tensor) else None
    if given is None:
        return NotImplemented
    # What ``int`` itself is given by a tensor, it makes a plain number of.
    return settled(given.number(tensor)) if note_caller("int") else NotImplemented


def whole_number(tensor: torch.Tensor, capture: InProgress) -> Any:
    """The whole number in a tensor that is made of numbers, or which the call brings.

    Returns:
        The number, which may be open; ``NotImplemented`` if it is known in neither way.
    """
    if (known := known_number(tensor, capture)) is not None:
        return known
    given = _answers_for(tensor, capture) if is_whole_number(tensor) else None
    return NotImplemented if given is None else given.number(tensor)


def known_number(tensor: torch.Tensor, capture: InProgress) -> Any:
    """The number in a tensor of one that the function made of numbers; None for others."""
    known = _made_of_numbers(tensor, capture) if is_whole_number(tensor) else None
    while isinstance(known, list):
        (known,) = known
    return known


def _made_of_numbers(tensor: torch.Tensor, capture: InProgress) -> Any:
    """The whole numbers in such a tensor, in lists; None for others."""
    if tensor.dtype is not torch.int64 or type(tensor) is not tracing.FunctionalTensor:
        return None
    node = capture.tape.node_of(tensor)
    return None if node is None else made_of_numbers.numbers_in(node, capture.tape.root)


def _may_stay(tensor: torch.Tensor) -> bool:
    """Whether the number in a tensor can be one of the graph."""
    if type(tensor) is not tracing.FunctionalTensor or is_wrapper(tensor):
        return False  # Its class says what its number is.
    return premise.are_allowed() and not functorch.transforms_active()


def _answers_for(tensor: torch.Tensor, capture: InProgress) -> sizes_of_values.Answers | None:
    """What the caller has brought, if it may bring the whole numbers of a tensor."""
    given = sizes_of_values.current()
    if given is None or not (premise.are_allowed() and has_whole_numbers(tensor)):
        return None
    if functorch.is_functorch_wrapped_tensor(tensor) or not tracing.is_symbolic(tensor):
        return None
    if any(map(graphs.is_collective, capture.tape.graph.nodes)):
        return None  # A rank that captures alone would wait.
    return given


def formatted(call: Call, capture: InProgress) -> str:
    """``f"{loss:.3f}"``."""
    tensor, spec = call.args
    return format(tensor.detach().item(), spec) if tensor.dim() == 0 else as_text(call, capture)


def as_text(call: Call, capture: InProgress) -> str:
    """``str`` and ``print``, which happen once, in the capture; in the middle of it no value is."""
    tensor = call.args[0]
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if not capture.events.written_as_text:
        capture.events.written_as_text = True
        warn_user(
            f"A tensor {kind} is written as text while the function is captured: that happens "
            "once, and the numbers aren't there. Print outside, or return the tensor.",
            CaptureWarning,
        )
    return f"{kind} {tracing.CAPTURED}"


def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    """``copy.deepcopy``, of a leaf."""
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment."
        )
    with torch.no_grad():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def assembled(data: Any, dtype: Any = None, device: Any = None, **settings: Any) -> Any:
    """``torch.tensor`` of what has open numbers, or tensors of one number, in it.

    Torch would ask them for their values. The result has no gradient.
    """
    if isinstance(data, torch.Tensor) or set(settings) - {"requires_grad", "copy"}:
        return NotImplemented
    data = _in_lists(data)
    leaves = tree_flatten(data)[0]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(leaf.dim() or functorch.is_functorch_wrapped_tensor(leaf) for leaf in tensors):
        return NotImplemented
    if not tensors and not any(type(leaf) in _OPEN for leaf in leaves):
        return NotImplemented
    # Of ragged lists, and of what is no number, torch says so.
    shape = torch.tensor(tree_map(_zero_for_one_to_come, data)).shape
    dtype = dtype or functools.reduce(torch.promote_types, map(_dtype_of, leaves))
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if whole and any(leaf.is_floating_point() or leaf.is_complex() for leaf in tensors):
        raise TypeError("only integer tensors of a single element can be converted to an index")
    if not all(_fits(leaf, dtype) for leaf in leaves):
        return NotImplemented
    with torch.no_grad():
        numbers = [_number_tensor(leaf, dtype, device) for leaf in leaves]
        found = torch.stack(numbers).reshape(shape) if shape else numbers[0]
    return found.requires_grad_() if settings.get("requires_grad") else found


def _in_lists(data: Any) -> Any:
    """Nested sequences, as lists: a shape is one, too."""
    if isinstance(data, list | tuple):
        return [_in_lists(each) for each in data]
    return data


def _number_tensor(leaf: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(device=device, dtype=dtype)
    if type(leaf) in (torch.SymInt, torch.SymFloat):
        return torch.full((), leaf, dtype=dtype, device=device)
    leaf = bool(leaf) if type(leaf) is torch.SymBool else leaf
    return torch.tensor(leaf, dtype=dtype, device=device)


def _fits(leaf: Any, dtype: torch.dtype) -> bool:
    """Whether an open number becomes one of a dtype without being rounded as Python's would be."""
    if type(leaf) not in (torch.SymInt, torch.SymFloat):
        return True
    if dtype is torch.float16 or dtype is torch.bool or dtype.is_complex:
        return False
    if dtype.is_floating_point:
        return True
    if type(leaf) is torch.SymFloat:
        return False
    limits = torch.iinfo(dtype)
    return dtype is torch.int64 or (bool(limits.min <= leaf) and bool(leaf <= limits.max))


def assembled_like(tensor: torch.Tensor, data: Any, **settings: Any) -> Any:
    """``x.new_tensor`` of such lists."""
    return assembled(data, **{"dtype": tensor.dtype, "device": tensor.device, **settings})


def _zero_for_one_to_come(leaf: Any) -> Any:
    return 0 if isinstance(leaf, torch.Tensor) or type(leaf) in _OPEN else leaf


def _dtype_of(leaf: Any) -> torch.dtype:
    if type(leaf) in _OPEN:
        return _DTYPES.get(type(leaf)) or torch.get_default_dtype()
    return leaf.dtype if isinstance(leaf, torch.Tensor) else torch.tensor(leaf).dtype
