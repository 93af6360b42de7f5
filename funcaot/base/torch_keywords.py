"""What ``torch.compile``'s keywords mean to ``funcaot.compile``: nothing, a little, or an error."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from funcaot.errors import FuncaotError

OWN = ("backend", "policy", "dynamic", "fullgraph")
# What each is for, in torch, and what does that here.
INSTEAD = {
    "mode": "leave it out, or set Inductor's own options: "
    "torch._inductor.config.patch(max_autotune=True) around the calls that compile.",
    "options": "set them around the calls that compile: torch._inductor.config.patch({...}).",
    "recompile_limit": "leave it out: caches are bounded and warn (funcaot.config).",
    "isolate_recompiles": "leave it out: each compiled function has programs of its own.",
}


def translated(keywords: Mapping[str, Any]) -> bool:
    """Reads the keywords of ``torch.compile``.

    Args:
        keywords: What ``funcaot.compile`` was given beside its own.

    Returns:
        Whether compiling is switched off.

    Raises:
        FuncaotError: One has no meaning here, or isn't known in either place.
    """
    for name, value in keywords.items():
        if name == "disable" and isinstance(value, bool):
            continue
        if name in INSTEAD and value in (None, "default", {}):
            continue
        refuse(name, value)
    return bool(keywords.get("disable"))


def refuse(name: str, value: object) -> None:
    """Raises the error for one keyword.

    Raises:
        FuncaotError: Always.
    """
    if name == "disable":
        raise FuncaotError(
            "funcaot.compile was given a value of `disable` that it can't take.",
            expected="True or False",
            got=repr(value),
            remedy="leave it out.",
        )
    if name in INSTEAD:
        raise FuncaotError(
            f"funcaot.compile was given `{name}`, which is torch.compile's and means nothing here.",
            expected=f"keywords among {', '.join(OWN)}",
            got=f"{name}={value!r}",
            remedy=INSTEAD[name],
        )
    near = difflib.get_close_matches(name, (*OWN, "disable", *INSTEAD), n=1)
    raise FuncaotError(
        f"funcaot.compile has no keyword `{name}`.",
        expected=f"keywords among {', '.join(OWN)}",
        got=f"{name}={value!r}",
        remedy=f"did you mean `{near[0]}`?" if near else "leave it out.",
    )
