"""Errors that funcaot raises: who, what was expected, what came, and what to do instead."""

from __future__ import annotations


class FuncaotError(RuntimeError):
    """Base of every error that funcaot itself raises."""

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
        where: str | None = None,
    ) -> None:
        """Compose the message from its parts.

        Args:
            what: What happened, naming the user's function and the transform.
            expected: What the rule or the stage needed.
            got: What it was given.
            remedy: What the user can do instead.
            where: Where what it is about is defined.
        """
        self.what, self.expected, self.got, self.remedy = what, expected, got, remedy
        self.where = where
        parts = [what]
        if expected is not None:
            parts.append(f"Expected: {expected}.")
        if got is not None:
            parts.append(f"Got: {got}.")
        if where:
            parts.append(f"Defined: {where}.")
        if remedy is not None:
            parts.append(f"Instead: {remedy}")
        super().__init__("\n".join(parts))


class MissingRuleError(FuncaotError):
    """A Function was asked for a transform that it has no rule for."""


class RuleError(FuncaotError):
    """A rule of a user's Function returned something that the transform can't use."""


class UnsupportedError(FuncaotError):
    """A capture met something that funcaot doesn't support (see the docs' table of limits).

    Attributes:
        repeatable: Whether the capture left everything as it was, so that the call can be made.
        left_to_eager: What is raised instead where eager knows what to do, which runs the call.
    """

    repeatable = True
    left_to_eager: UnsupportedError | None = None


class OutsideError(UnsupportedError):
    """Code that is captured asks the world outside (the clock, a file), or does something to it."""


class StageError(FuncaotError):
    """A stage of the pipeline failed; ``__cause__`` carries the original exception."""


class GraphError(FuncaotError):
    """A captured graph broke an invariant; the message shows the graph."""


class ArgumentError(FuncaotError, TypeError):
    """The operator was called with something that it can't take."""


class ArtifactError(FuncaotError):
    """An artifact can't be written or loaded: it is foreign, stale, or its file can't be used."""


class LeakWarning(UserWarning):
    """A tensor of a capture was kept by the function, where later calls find it without a value."""


class PatchWarning(UserWarning):
    """This torch looks different where the library changes it; the message says what is lost."""


class RecompileWarning(UserWarning):
    """A function keeps being compiled for calls that differ; the message names what changes."""


class CaptureWarning(UserWarning):
    """What happens in a capture isn't what happens in each call."""


class PrecisionWarning(UserWarning):
    """A rule of a Function is less precise than its dtype, or wrong where it may not be meant."""
