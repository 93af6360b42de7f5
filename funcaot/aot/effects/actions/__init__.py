"""What may happen to an input, a file each; ``analysis`` finds them, ``epilogue`` replays them."""
