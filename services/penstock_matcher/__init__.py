"""The matcher: who runs where, who is preempted for it, and why the others wait."""
