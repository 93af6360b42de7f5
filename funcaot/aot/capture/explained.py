"""Errors of a capture, said in the user's terms; ``capture`` and ``effects`` ask here."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from funcaot._torch.calls.general_hooks import taking_back
from funcaot._torch.tensors.seeding import drawing_nothing_on_errors, seeding_refused
from funcaot._torch.tracing import tracing, tracing_errors
from funcaot.aot.capture.events import InputEvents
from funcaot.aot.signature.ambient import put_back_on_errors
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.aot.tape.memory import storages
from funcaot.errors import FuncaotError, UnsupportedError

__all__ = ["explained", "is_stale", "limit_of_writes", "stale_view"]


def limit_of_writes(error: Exception, name: str) -> UnsupportedError | None:
    """What a write that can't be made functional is refused with, if an error says that."""
    text = str(error)
    if isinstance(error, UnsupportedError):
        return None
    if any(limit in text for limit in tracing_errors.FUNCTIONALIZATION_LIMITS):
        return UnsupportedError(
            f"{name} writes to a view that as_strided made out of a view, or resizes one.",
            remedy="make the view with slices, view, transpose and the like.",
        )
    if tracing_errors.OVERLAPPING_WRITE in text:
        return UnsupportedError(
            f"{name} writes to a view more than one of whose elements is in one place in memory "
            "(expand, unfold).",
            remedy="write to the tensor before such a view is made, or to a clone.",
        )
    if tracing_errors.FROZEN_STORAGE in text:
        return UnsupportedError(
            f"{name} writes to a tensor that another one was given the memory of by set_.",
            remedy="write before set_ is called, or return a new tensor.",
        )
    return None


def is_stale(error: Exception) -> bool:
    """Whether a view couldn't be made again on what its base became."""
    return any(text in str(error) for text in tracing_errors.STALE_VIEWS)


def stale_view(name: str) -> UnsupportedError:
    """What is raised where a view can't be made again on what was written to its base."""
    return UnsupportedError(
        f"{name} writes to memory by a view, or by a tensor whose shape it changed, and another "
        "view can't be made again on what it wrote.",
        remedy="write to the tensor itself, or make the other view afterwards.",
    )


@contextlib.contextmanager
def explained(name: str, events: InputEvents) -> Iterator[None]:
    """Refuse what a capture can't record; the user's own exceptions pass through unchanged."""

    def refuse(seeding: str) -> UnsupportedError:
        return UnsupportedError(
            f"{name} calls torch.{seeding}, which would happen once, when it is captured, and not "
            "at every call.",
            remedy="seed outside of the compiled function.",
        )

    try:
        with (
            seeding_refused(refuse),
            drawing_nothing_on_errors(),
            put_back_on_errors(),
            taking_back() as left,
        ):
            yield
        if left:
            raise UnsupportedError(
                f"{name} registers a hook that runs for every module or optimizer, and leaves it.",
                remedy="do it outside of the compiled function, or remove the hook inside again.",
            )
    except FuncaotError:
        raise
    except Exception as error:
        limit = limit_of_writes(error, name) or storages.explained(error, name)
        if limit is not None:
            raise limit from error
        if (events.wholes or events.shared) and is_stale(error):
            raise stale_view(name) from error
        if events.wholes and tracing_errors.OUT_OF_BOUNDS in str(error):
            raise UnsupportedError(
                f"{name} gives a tensor a shape by as_strided_ that reaches beyond it.",
                remedy="use as_strided.",
            ) from error
        refusal = _what_torch_cannot(error, name)
        if refusal is not None:
            raise refusal from error
        unknown = None if isinstance(error, UnsupportedError) else _without_values(error, name)
        if unknown is None:
            raise
        raise unknown from error


def _what_torch_cannot(error: Exception, name: str) -> UnsupportedError | None:
    """What is refused because torch has no symbolic version of it, by the words of its error."""
    text = str(error)
    if tracing_errors.is_of_a_scripted_module(error):
        return UnsupportedError(
            f"{name} calls a scripted or traced module, whose tensors Python doesn't see.",
            remedy="call the Python module that it was made from.",
        )
    if any(each in text for each in tracing_errors.WITHOUT_MODES):
        return EagerOnlyError(
            f"{name} makes a tensor of another class out of one, by as_subclass or in C++ that "
            f"no mode of torch sees{_line_of(error)}.",
            remedy="compute with plain tensors inside, and make what comes out one of that "
            "class; or keep that part outside of the compiled function.",
        )
    if tracing_errors.MIXED in text:
        return EagerOnlyError(
            f"{name} computes with a tensor that its capture doesn't know{_line_of(error)}: a "
            "Function that can't be traced was given one inside of an object, or a hook uses one "
            "that nothing else does.",
            remedy="pass apply such a tensor as an operand of its own, and what a hook uses as an "
            "argument; or keep the Function to what a capture can trace, without NumPy, .item() "
            "and states of generators.",
        )
    if "storage on different device" in text:
        return UnsupportedError(
            f"{name} resizes a tensor that it made to more elements and then takes a view.",
            remedy="make a new tensor of that size.",
        )
    if any(each in text for each in tracing_errors.OF_INFERENCE_MODE):
        return UnsupportedError(
            f"{name} makes a view or a tangent in inference mode, where its capture can't.",
            remedy="use torch.no_grad() instead, inside of the function or around the call.",
        )
    return None


def _without_values(error: Exception, name: str) -> UnsupportedError | None:
    """What asking for a value is refused with that nobody has, if that is what an error says."""
    if any(text in str(error) for text in tracing_errors.READS_BATCHED_VALUES):
        return UnsupportedError(
            f"{name} reads the value of a tensor under vmap (.item(), float() or a branch)"
            f"{_line_of(error)}: it differs from example to example.",
            remedy="compute with the tensor itself, with torch.where for a branch.",
        )
    if not tracing.is_untraceable(error):
        return None
    reason = str(getattr(error, "func", None) or error).splitlines()[0].rstrip(".")
    if reason.startswith(tracing_errors.COUNTS_ELEMENTS):
        return UnsupportedError(
            f"{name} counts the elements of a jagged tensor with holes between its rows, as a mean "
            f"or the gradient of an average does{_line_of(error)}: its lengths say how many.",
            remedy="close the holes by contiguous(); or compute with sums and lengths().sum().",
        )
    instead = (
        "compute with the tensor itself, with torch.where for a branch: under vmap a value "
        "differs from example to example."
    )
    if tracing_errors.READS_A_NUMBER in reason:
        reason = "it reads a number (.item(), float() or a branch)"
    elif any(text in reason for text in tracing_errors.READS_AN_ARRAY):
        reason = "it takes its values as an array of NumPy (.numpy(), or a function of NumPy)"
        instead = "compute with torch."
    return UnsupportedError(
        f"{name} depends on the values or the memory of a tensor, which a capture doesn't "
        f"have: {reason}{_line_of(error)}.",
        remedy=f"{instead} Else keep that part out of the compiled function, or put it into the "
        "forward of a funcaot.Function, which then runs on real values.",
    )


def _line_of(error: Exception) -> str:
    """Where the user's code asked for it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in frame.filename and "/funcaot/" not in frame.filename
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
