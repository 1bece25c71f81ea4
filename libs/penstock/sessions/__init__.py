"""What is behind ``penstock.session()``: the loop, its boundaries, checkpoints, and the talk with the executor."""
