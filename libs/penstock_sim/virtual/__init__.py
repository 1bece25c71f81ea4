"""The production deciders under virtual time: the same code that runs a cluster, with a clock that jumps."""
