"""What a call has to do beside its graph: found after a capture, replayed in the epilogue."""
