"""Rules of one kind made from rules of another, and the checks on what a rule returns."""
