"""Writes the function that reads and compares what a program depends on; a call runs it first."""
