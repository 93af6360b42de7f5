"""A backend that takes every freedom a compiler has, and compiles nothing."""

from tests.hostile.backend import COMPILER, Freedoms, hostile

__all__ = ["COMPILER", "Freedoms", "hostile"]
