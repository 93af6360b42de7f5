"""Calls of torch with numbers that a program leaves open: what runs instead."""
