"""Losses whose backward torch can't differentiate."""
