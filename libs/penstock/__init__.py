"""Penstock: what users import and type."""
