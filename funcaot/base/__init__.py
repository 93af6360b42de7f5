"""What all rooms stand on: scopes, tracebacks without our frames, torch.compile's keywords."""
