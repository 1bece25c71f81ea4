"""
Chaos: real clusters, real jobs, faults from a seed, and invariants that the log and the jobs' own files must fulfil.

``make chaos ARGS="--schedules 200 --seed 1"`` runs schedules; docs/chaos.md says what they do and what is checked.

In reading order:

* ``schedule``: What happens in one schedule and when: jobs and faults, made from a seed; no I/O.
* ``jobs``: The programs of the jobs, which note what they do with the time.
* ``disk``: A disk of the cluster's own, which can be full, hang, and lose what was not flushed.
* ``proxy``: The network between one process and the server.
* ``cluster``: The server, the services and the executors, as ``penstock up`` runs them, and how each is hit.
* ``submitter``: Submits the jobs of a schedule, and notes what was answered.
* ``record``: What a schedule leaves behind: the log as bytes, the jobs' notes, leases, snapshots, processes.
* ``invariants``: What must be true of a record.
* ``trial``: One schedule from start to verdict.
"""
