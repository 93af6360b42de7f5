"""Forms that a Function may have and a level doesn't know: made into others before a rule runs."""
