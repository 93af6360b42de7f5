"""What a tensor's hook changes in Python; ``.grad`` effects ask, who run hooks in a capture.

What the captured function reaches too is tracked, and changed in each call. A hook that was
registered before may close over something else, which nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from funcaot.aot.closure.environment import Environment
from funcaot.aot.state.of_functions import watch_of
from funcaot.errors import UnsupportedError

__all__ = ["refusing_changes"]


def refusing_changes(
    hook: Callable[..., Any], name: str, environment: Callable[[], Environment]
) -> Callable[..., Any]:
    """The same hook, which is refused if it changes what the captured function doesn't reach.

    Args:
        hook: A tensor's hook from before the call.
        name: The captured function, for messages.
        environment: Says what that reaches.
    """

    @wraps(hook, updated=())
    def run(*given: Any) -> Any:
        if getattr(hook, "__module__", None) == "torch.autograd.graph":
            # It asks autograd for nodes of the tensors that it was registered on.
            raise UnsupportedError(
                f"{name} calls backward(), which reaches a tensor that "
                "torch.autograd.graph.register_multi_grad_hook was called on before.",
                remedy="register it inside; or call backward() outside of it.",
            )
        watch = watch_of((hook,), name)
        looked = watch.look()
        result = hook(*given)
        path = watch.changed_beside(looked, environment())
        if path is None:
            return result
        watch.take_back(looked)
        raise UnsupportedError(
            f"{name} calls backward(), and a hook of a tensor that was registered before the call "
            f"changes {path}, which would happen once, when it is captured, and not at every call.",
            remedy=f"let {name} reach what the hook changes, by a global or its closure; or call "
            "backward() outside of it.",
        )

    return run
