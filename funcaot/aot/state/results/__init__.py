"""What a call of a captured function hands back and stores: made anew from its own tensors."""
