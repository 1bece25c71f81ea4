"""
The memory agent: lends a node's idle memory in slabs, and borrows slabs for the clients of its own node.

In reading order:

* ``__main__``: ``python -m penstock_memory``.
* ``machine``: Settings, and what of the node's memory is promised to jobs. Pure.
* ``runner``: The agent at work.
* ``donor``: What this node lends, to whom, and what it takes back.
* ``kept_copies``: The copies of checkpoints that this node keeps for jobs. Pure.
* ``borrower``: What this node's clients have borrowed, and from whom.
* ``client_listener``: The socket that clients of this node talk to.
* ``slab_server``: The data port, by which clients read and write their slabs.
* ``slab_pool``: The slabs: memory of their own for each lending.
* ``pressure``: How much memory the node has free.
* ``fact_batch``: Facts on their way to the log, a commit a second at most.
"""
