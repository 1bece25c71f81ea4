"""What ``penstock up`` is made of: the folder's lock and record, the children, and waiting until all are ready."""
