"""Factorisations in forward mode."""
