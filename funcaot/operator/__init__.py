"""The operator that a Function is called through, and what it hands to each level's rule."""
