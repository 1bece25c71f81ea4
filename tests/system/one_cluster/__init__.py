"""Modules that share one cluster: as a package, so that the cluster ends with the last of them."""
