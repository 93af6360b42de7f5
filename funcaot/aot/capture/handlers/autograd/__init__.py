"""What a capture does with functions of torch about gradients; ``table`` has a row for each."""
