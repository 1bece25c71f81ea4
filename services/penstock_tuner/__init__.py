"""The tuner service."""
