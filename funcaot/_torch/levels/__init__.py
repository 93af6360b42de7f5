"""functorch's stack of levels, read and entered."""
