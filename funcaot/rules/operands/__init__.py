"""A call on trees, objects and closures, as the operands of a Function and a record of the rest."""
