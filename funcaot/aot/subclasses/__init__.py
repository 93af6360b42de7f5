"""Tensors that wrap tensors: what one consists of, and how it is made again from its parts."""
