"""What a person sees of a compilation: stages, logs, progress and tracebacks."""
