"""One forward with the backwards that continue it: partitioned and differentiated."""
