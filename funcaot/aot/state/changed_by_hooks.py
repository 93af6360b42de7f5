"""What hooks change in Python; ``.grad`` effects ask for those of tensors, the state tracker else.

What the captured function reaches too is tracked, and changed in each call. A hook that was
registered before may close over something else, which nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from funcaot._torch.tensors.guards import hooks_of_all_modules
from funcaot.aot.closure.environment import Environment
from funcaot.aot.state.of_functions import watch_of
from funcaot.errors import UnsupportedError

__all__ = ["HooksOfAllModules", "refusing_changes"]


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


class HooksOfAllModules:
    """What the hooks that torch runs for every module change."""

    def __init__(self, name: str) -> None:
        """Look at what they reach.

        Args:
            name: The captured function, for messages.
        """
        hooks = tuple(hook for kind in hooks_of_all_modules() for hook in kind.values())
        self._name = name
        self._watch = watch_of(hooks, name) if hooks else None
        self._looked = self._watch.look() if self._watch else []

    def refuse_changes(self, environment: Environment) -> None:
        """Refuse what the captured function doesn't reach, and put it back.

        Args:
            environment: What the function reaches.

        Raises:
            UnsupportedError: Something of that kind changed.
        """
        path = self._watch and self._watch.changed_beside(self._looked, environment)
        if self._watch is None or path is None:
            return
        self._watch.take_back(self._looked)
        raise UnsupportedError(
            f"{self._name} runs a hook of all modules that changes {path}, which would happen "
            "once, when it is captured, and not at every call.",
            remedy=f"let {self._name} reach what the hook changes, by a global or its closure; "
            "or register the hook on a module.",
        )
