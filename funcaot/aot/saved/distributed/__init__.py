"""Programs of tensors that many ranks share, in files."""
