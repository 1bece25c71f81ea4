"""
The pages, each a coroutine from a visit to its content.

In reading order:

* ``device_page``: All devices, by node and rack: who has which.
* ``queue_page``: The waiting jobs in rank order, with the cause of each.
* ``jobs_page``: All jobs, newest first.
* ``job_page``: One job, and its facts.
* ``log_page``: A job's output.
* ``sweep_page``: All sweeps, and one.
* ``timeline_page``: Who held which device when.
* ``allocations_page``: Allocations and their pilots.
* ``users_page``: Device time by user, team, pool, model, kind or job, with quotas and even shares.
* ``what_if_page``: The log once more, under another policy or with more devices.
"""
