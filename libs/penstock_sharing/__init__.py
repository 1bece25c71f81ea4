"""libs/penstock_sharing/__init__.py."""
