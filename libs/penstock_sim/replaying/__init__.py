"""A history and its replays beside each other: what really happened, how they differ, what cannot be known."""
