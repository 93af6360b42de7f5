"""What somebody put in the place of a library's own functions, methods and constants."""
