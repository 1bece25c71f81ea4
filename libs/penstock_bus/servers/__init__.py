"""
The NATS servers that keep the log: one, or three together, as child processes.

In reading order:

* ``server``: The NATS server as a child process, and room on its disk.
* ``cluster_member``: A server's place in a cluster.
* ``cluster_folder``: What the servers of a cluster share on disk.
* ``server_group``: The servers of a data folder, and how one becomes three.
"""
