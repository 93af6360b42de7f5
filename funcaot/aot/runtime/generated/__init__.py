"""Code that is generated for the common call and its backward; ``entry`` has it made."""
