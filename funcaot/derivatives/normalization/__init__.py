"""Normalizations whose third derivative torch gets wrong; each file has the rules of one."""
