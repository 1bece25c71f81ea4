"""The exact AlloX matching on levels: all machines of a kind at the same place from the end."""
