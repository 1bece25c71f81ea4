"""Documents that are drawn from the code, so that they cannot drift from it."""
