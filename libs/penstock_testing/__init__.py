"""Penstock's testing."""
