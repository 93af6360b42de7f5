"""A derivative rule that a Function lacks, made from the one that it has."""
