"""Which names code reads and writes, as far as its bytecode says."""
