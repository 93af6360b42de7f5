"""Random generators whose states are tensors of a capture."""
