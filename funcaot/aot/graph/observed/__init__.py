"""What a person sees of a compilation: stages, logs and progress."""
