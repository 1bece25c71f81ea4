"""Jobs that share devices: with whom, on which, who makes way for whom, and why one waits."""
