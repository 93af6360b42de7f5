"""Inductor as the default backend compiles with it, and what is mended in it meanwhile."""
