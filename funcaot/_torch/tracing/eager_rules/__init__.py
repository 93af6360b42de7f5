"""What eager does with an op and symbolic tensors don't: refusals, checks and strides."""
