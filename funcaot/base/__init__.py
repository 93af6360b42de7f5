"""What all rooms stand on: scopes, tracebacks without our frames, names, torch's keywords."""
