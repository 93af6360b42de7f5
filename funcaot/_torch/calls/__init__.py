"""How ``apply`` of an autograd.Function reaches the operator."""
