"""Python state that a function changes: tracked in a capture, replayed by each call."""
