"""The autoscaler's pure part."""
