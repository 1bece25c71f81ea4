"""
Memory of other nodes: a tier above the own disk, for data that is larger than the host's memory.

In reading order:

* ``frames``: Frames of the slab protocol, by which a client reads and writes a borrowed slab.
* ``nbd_server``: NBD server: any program has a store of bytes as a block device, unmodified.
"""
