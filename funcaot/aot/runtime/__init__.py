"""Entries, their caches and the generated code that a call runs."""
