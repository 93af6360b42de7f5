"""What users write Functions with, and what routes their ``apply`` to the operator."""
