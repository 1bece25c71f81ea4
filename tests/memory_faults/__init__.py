"""
Verifier of borrowed memory: real agents and clients, faults from a seed, and every byte compared with what was written.

``python -m memory_faults --histories 300 --seed 1`` in the folder ``tests`` runs histories; docs/memory.md says what
must hold. Where network namespaces can be made, each of four machines has one, so slabs go over real TCP between them.

In reading order:

* ``plan``: What happens in one history and when, drawn from a seed; no I/O.
* ``content``: Words that say where they belong and which version they are; what may be found in a store.
* ``client``: The process of a client: it writes and reads through a file and through NBD, and checks what it reads.
* ``machines``: Network namespaces, and memory agents in them, which can be stopped, killed and cut off.
* ``history``: One history from start to verdict.
* ``broken``: The product broken on purpose, to see that the verifier finds it.
"""
