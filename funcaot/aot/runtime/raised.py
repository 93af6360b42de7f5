"""A call is made as it is, since the function raised or was refused while ``compiled`` captured it.

What a function does before it raises stays done in eager torch: writes, gradients, what it stored,
random numbers that it drew. A capture does nothing of that, and what it did in Python is undone.
So the function is called as it is, where it raises again, and does all that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any

from funcaot._torch.levels.situation import situation
from funcaot._torch.tensors.classes.own_functions import as_called
from funcaot._torch.tracing.tracing import is_untraceable
from funcaot.aot.graph.location import warn_user
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.runtime.transform_stacks import NotCapturedError
from funcaot.aot.signature.signature import Signature
from funcaot.aot.state.state_effects import Call
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.classes.premise import PremiseFailed
from funcaot.derivatives.kernels import with_derivatives
from funcaot.errors import CaptureWarning, FuncaotError, UnsupportedError
from funcaot.functions.interception import intercepting_ops

__all__ = ["RaisedCalls", "RaisedInCaptureError", "call_plainly", "is_of_function"]

_MOST = 255  # calls that are let by before one is captured again
_OURS = (FuncaotError, NotCapturedError, PremiseFailed)


class RaisedInCaptureError(Exception):
    """The function itself raised, in a capture of a part of it; ``__cause__`` is what it raised.

    Attributes:
        watch: Makes the call of the whole as it is, and notes how that ends.
    """

    def __init__(self, watch: Callable[[Callable[[], Any]], Any] = operator.call) -> None:
        """Nobody sees it."""
        super().__init__()
        self.watch = watch


def is_of_function(error: Exception) -> bool:
    """Whether an error in a capture is one of the function, not a refusal of the library."""
    return not (isinstance(error, (*_OURS, RaisedInCaptureError)) or is_untraceable(error))


class RaisedCalls:
    """Calls that raised in their capture and raised again when they were made as they are.

    A call that looks like one of them isn't captured, which would take long and end the same way:
    it is made as it is, so it raises what eager does, or returns what eager does if the cause is
    gone. Then the next one like it is captured. Sizes and numbers may be others: a loop that
    catches the error goes on with other data.

    A call that raises only in its capture runs as it is, too. The next one like it is captured,
    since the first may have been special; if that raises, more and more of them are let by.
    """

    def __init__(self, settings: Settings) -> None:
        """No call has raised yet.

        Args:
            settings: Those of the function, for their lock.
        """
        self._settings = settings
        self._raised: Derived[Hashable, bool] = Derived()
        self._returned: Derived[Hashable, bool] = Derived()
        # How many calls are let by after a capture that alone raised, and how many are left.
        self._let_by: Derived[Hashable, tuple[int, int]] = Derived()

    def lets_by(self, signature: Signature) -> bool:
        """Whether a call isn't captured, since captures of calls like it raised."""
        if self.stand(signature):
            return True
        if not self._let_by:
            return False
        with self._settings.lock:
            key = _key(_roughly(signature))
            every, left = self._let_by.get(key) or (0, 0)
            if left > 0:
                self._let_by[key] = every, left - 1
        return left > 0

    def stand(self, signature: Signature) -> bool:
        """Whether a call isn't captured, since one like it raised."""
        if not self._raised or self._raised.get(_key(_roughly(signature))) is None:
            return False
        return self._returned.get(_key(signature)) is None

    def watch(self, signature: Signature, captured: bool, call: Callable[[], Any]) -> Any:
        """Make a call as it is that raised in its capture, or that looks like one that did.

        Args:
            signature: What it looks like.
            captured: Whether it raised in its capture.
            call: Makes it.

        Returns:
            What it returns.

        Raises:
            Exception: What it raises.
        """
        try:
            result = call()
        except Exception:
            if not self.stand(signature):
                with self._settings.lock:
                    self._raised[_key(_roughly(signature))] = True
                    self._returned.pop(_key(signature), None)
            raise
        with self._settings.lock:
            if self._raised:
                self._returned[_key(signature)] = True
            if captured:
                key = _key(_roughly(signature))
                every = self._let_by.get(key)
                longer = 0 if every is None else min(2 * every[0] + 1, _MOST)
                self._let_by[key] = longer, longer
        return result

    def clear(self) -> None:
        """Forget everything."""
        self._raised.clear()
        self._returned.clear()
        self._let_by.clear()


def _key(looks: Hashable) -> Hashable:
    return looks, situation().derives


def _roughly(signature: Signature) -> Hashable:
    """What a call looks like whatever its sizes and numbers are."""
    leaves = tuple(
        (leaf.dtype, leaf.device, len(leaf.shape), leaf.requires_grad)
        if isinstance(leaf, TensorSpec)
        else (leaf.kind if leaf.kind in (int, float) else leaf)
        for leaf in signature.leaves
    )
    return signature.tree, leaves, signature.kinds, signature.repeats, signature.ambient


def call_plainly(
    function: Callable[..., Any], name: str, call: Call, raised: BaseException | None
) -> Any:
    """Call a function as it is: it raised in its capture, or can't be captured yet.

    Args:
        function: The user's function.
        name: What it is called, for messages.
        call: Its ``(args, kwargs)``.
        raised: What it raised, or the refusal; None if it is called for another reason.

    Returns:
        Its result, if it doesn't raise now. A warning says so.

    Raises:
        Exception: Whatever the function raises.
    """
    args, kwargs = call
    # With the rules that the capture had: without them torch's lack of one would hide the error.
    with with_derivatives(), intercepting_ops(), as_called():
        result = function(*args, **kwargs)
    if raised is not None:
        warn_user(_why(name, raised), CaptureWarning)
    return result


def _why(name: str, raised: BaseException) -> str:
    """Why a call of a function wasn't compiled, in words."""
    if isinstance(raised, EagerOnlyError):
        return (
            f"A call of {name} runs in eager, without being compiled: {raised.what} To have it "
            f"compiled, {raised.remedy}"
        )
    if isinstance(raised, UnsupportedError):
        return f"This call of {name} ran without being compiled, since it can't be: {raised}"
    return (
        f"{name} raised {type(raised).__name__} while it was captured, and doesn't when it is "
        f"called as it is; so this call ran without being compiled: {raised}"
    )
