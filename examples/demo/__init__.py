"""The demo: real training jobs on one node with emulated devices."""
