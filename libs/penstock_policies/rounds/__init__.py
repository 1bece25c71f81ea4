"""One round of one pool, from what is known of it: the matcher decides by it, the gateway and the simulator ask it."""
