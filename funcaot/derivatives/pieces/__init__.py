"""Rows that are put together: bags, segments, reductions by an index."""
