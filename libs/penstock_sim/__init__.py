"""Traces, virtual time, and what a cluster would have done with other policies."""
