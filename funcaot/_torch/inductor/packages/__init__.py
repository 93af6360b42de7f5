"""Packages of compiled code: what AOTInductor makes of a graph."""
