"""Graphs and segments that can be called at any level, and derivatives made when asked for."""
