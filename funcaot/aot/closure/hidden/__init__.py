"""What objects of Python's classes in C hold, which no attribute of theirs shows by name."""
