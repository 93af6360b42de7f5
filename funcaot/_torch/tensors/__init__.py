"""What torch knows of tensors, settings and random numbers behind private names."""
