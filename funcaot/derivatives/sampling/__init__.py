"""Values of a picture between its points, in forward mode."""
