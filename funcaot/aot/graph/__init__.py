"""Records that describe tensors and graphs, with their checks; every other room uses them."""
