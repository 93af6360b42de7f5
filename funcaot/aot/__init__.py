"""The lazy pipeline: capture, effects, segments, lowering, and backwards traced when invoked."""
