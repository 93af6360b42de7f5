"""What a capture does with a function of torch besides running it, a file a kind."""
