"""
Runs that share their devices with others: who takes turns with whom, and what they hold.

In reading order:

* ``sharing_supervisor``: Shared runs, from the grant to the last process.
* ``node_lanes``: The lanes of the node: who shares what.
* ``sharing_state``: The runs, whose turn it is, who holds the tokens: one state.
* ``shared_run``: One run, its measured need, commands about it.
* ``lane_coordinator``: Decisions brought to the pages; turn limits.
* ``lane_telemetry``: Telemetry of lanes, and the gain of running side by side.
"""
