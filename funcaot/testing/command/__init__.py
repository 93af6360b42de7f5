"""The command ``python -m funcaot``: ``check`` Functions, ``record`` what they are given."""

from __future__ import annotations

from funcaot.testing.command.main import main

__all__ = ["main"]
