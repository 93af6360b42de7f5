"""The README that a package index shows: links to files of the repository can't work there.

Hatchling calls it when it builds a wheel or an sdist. With a ``Source`` among the project's URLs
such links become absolute; without one they become text that names the file.
"""

from __future__ import annotations

import re
from pathlib import Path

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # The tests look at the text, also where nothing is built.
    MetadataHookInterface = object

# Links that aren't pictures and lead to a file: no scheme and no anchor of the page.
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def readme_for_index(text: str, source: str | None) -> str:
    """The README without links that lead nowhere."""

    def replaced(link: re.Match[str]) -> str:
        if source is not None:
            return f"[{link[1]}]({source.rstrip('/')}/blob/main/{link[2]})"
        return f"{link[1]} (`{link[2]}`)"

    return _LINK.sub(replaced, text)


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """Hatchling's way to ask."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict) -> None:
        """Set the text of the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        content = {"content-type": "text/markdown", "text": readme_for_index(text, source)}
        metadata["readme"] = content
