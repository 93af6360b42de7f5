"""What is known of a class of tensors: what it says itself, and how its tensors are taken apart."""
