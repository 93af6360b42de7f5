"""Runs a function once, with its inputs lifted, and gives the tape what it does."""
