"""Private names of torch, imported here and nowhere else, one file per subsystem."""
