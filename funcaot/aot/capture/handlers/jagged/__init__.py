"""What a capture does with functions of torch on jagged tensors; rows of ``table`` call these."""
