"""Numbers of NumPy's that a program leaves open."""
