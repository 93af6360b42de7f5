"""Functions, and backwards of Functions, that run on real values between compiled parts."""
