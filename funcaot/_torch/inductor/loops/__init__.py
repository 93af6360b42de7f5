"""How Inductor makes loops for the CPU, where it is slow or they are: ``mended`` uses it."""
