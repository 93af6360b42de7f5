"""Where the tensors of a tape lie in memory, and what writes to it do."""
