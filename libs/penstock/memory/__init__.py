"""
Memory of other nodes: a tier above the own disk, for data that is larger than the host's memory.

In reading order:

* ``frames``: Frames of the slab protocol, by which a client reads and writes a borrowed slab.
"""
