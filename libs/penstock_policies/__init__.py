"""Penstock's policies."""
