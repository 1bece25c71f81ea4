"""The profiler service."""
