"""Penstock's devices."""
