"""The counting event loop, compiled."""
