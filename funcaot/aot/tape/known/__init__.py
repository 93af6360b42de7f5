"""What a tape knows of values, and what a capture makes of asking for them."""
