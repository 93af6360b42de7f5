"""What is known of a Function's class: its parts, its context, what it allows."""
