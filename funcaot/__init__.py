"""funcaot: any ``torch.autograd.Function``, compiled or not, under any transform, to any order."""
