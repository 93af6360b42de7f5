"""Derivatives of torch's ops that torch lacks: a table, the rules in it, and where they hold.

What torch silently takes for a constant keeps being one: :mod:`funcaot.derivatives.special` has
rules for such functions, which hold from its import on.
"""
