"""
The allocator: nodes for a while, from a cluster of somebody else's.

In reading order:

* ``demand``: How many more pilots waiting jobs would run on, asked of the matcher's own round.
* ``withdrawal``: For how long pilots that wait for their start have been too many.
* ``machine``: Settings, state, apply, decide.
* ``pilot_script``: The shell scripts that a provider runs as a pilot.
* ``providers/``: Where pilots run: the port, Slurm, Kubernetes, child processes, hosts over SSH.
* ``keeper``: Pilots at their providers: submitted, looked after, cancelled.
* ``runner``: The allocator on a bus.
* ``__main__``: The allocator's program.
"""
