"""The autoscaler: how many devices and which batch size each elastic job has."""
