"""Torch's own operators under the generated tests."""
