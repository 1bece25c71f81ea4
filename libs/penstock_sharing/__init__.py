"""
Sharing of a device: lanes of its memory, and the token by which the members of a lane take turns.

In reading order:

* ``lanes/``: Which jobs share what of a device, and whose turn it is. Pure; executors and the packed host use it.
* ``token/``: The page of memory and the socket by which a turn passes from process to process. Standard library only.
"""
