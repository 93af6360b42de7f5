"""What captured code asks of the world outside, or does to it: the clock, files, processes."""
