"""Sizes that an artifact leaves open: as they are asked for, and as a capture finds them."""
