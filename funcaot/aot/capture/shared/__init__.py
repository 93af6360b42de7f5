"""Inputs that share memory: found, and put on a tape as one flat region."""
