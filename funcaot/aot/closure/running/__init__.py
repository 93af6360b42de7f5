"""Which functions ran, of several that have the same code."""
