"""What a call looks like: its structure, tensors, sizes and settings; the key of its program."""
