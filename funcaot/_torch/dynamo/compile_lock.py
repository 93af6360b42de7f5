"""One compilation at a time in the process, torch.compile's among them; and first imports.

Inductor keeps global state while it compiles. torch.compile's lock is ours too: whoever holds it
never waits for a lock of a compiled function, since Dynamo looks into those.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from funcaot.base.scopes import holding

__all__ = ["compiling", "import_dynamo", "replaced_here"]


def import_dynamo() -> None:
    """Import what ``torch.compile`` imports first, in its order.

    Two threads that import modules which need each other, in different orders, find them half
    imported. In the same order one waits for the other.
    """
    import torch._dynamo.backends.registry
    import torch._inductor.compiler_bisector  # noqa: F401


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Nobody else compiles in this process; Inductor is imported."""
    import_dynamo()
    from torch._dynamo import convert_frame

    with convert_frame.compile_lock:
        if "torch._inductor.compile_fx" not in sys.modules:
            with warnings.catch_warnings():
                # It imports parts of torch that are deprecated, about which users can do nothing.
                warnings.simplefilter("ignore", DeprecationWarning)
                import torch._dynamo.repro.after_dynamo
                import torch._inductor.compile_fx  # noqa: F401
        yield


def _renew_lock() -> None:
    """After a fork the lock may be held by a thread that isn't there any more."""
    convert_frame: Any = sys.modules.get("torch._dynamo.convert_frame")
    if convert_frame is not None:
        convert_frame.compile_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def replaced_here(target: object, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A method is another function inside, for this thread; others go on with the original."""
    original: Any = getattr(target, name)
    here = threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        run = function if threading.get_ident() == here else original
        return run(*args, **kwargs)

    with holding(target, **{name: chosen}):
        yield
