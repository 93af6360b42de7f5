"""Fake and functional tensors and make_fx, as a capture uses them."""
