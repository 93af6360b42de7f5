"""Autograd's nodes, saved values and views, as the operator and the tape read them."""
