"""What a function can reach besides its arguments: found for ``reader`` and ``state``."""
