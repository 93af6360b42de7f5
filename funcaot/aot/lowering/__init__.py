"""From a graph to an executable that keeps the contract: strides, sharing, sizes."""
