"""Every derivative of attention, for the kernels that torch fuses."""
