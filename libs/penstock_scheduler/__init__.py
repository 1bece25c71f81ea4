"""
One round of one pool, from what is known of it: the matcher decides by it, the gateway and the simulator ask it.

In reading order:

* ``round``: One round, top-down: admit, match, place, explain.
* ``round_types``: What a round works on: jobs, runs, rules, context.
* ``candidates``: The waiting jobs that a round looks at.
* ``quotas``: Quota rules: who is covered, who borrows.
* ``priority_classes``: Classes of jobs: who comes first, and whom they preempt.
* ``class_limits``: Who waits because a class' jobs of his hold as much as they may.
* ``reservations``: Quotas with a time, and who waits because one is to begin.
* ``fairness``: Whose jobs enter a round.
* ``admission``: One walk: who starts, who is preempted, what is kept free.
* ``preemption``: Which runs make room.
* ``node_preemption``: Which make room on certain nodes, for a job that cannot have any devices.
* ``assignment``: Which one-device job gets which kind, and when devices are free.
* ``placement``: Which devices.
* ``wait_causes``: Why a job waits.
* ``what_if``: The production round on a changed pool; alternatives.
* ``start_forecast``: When a waiting job is expected to start.
* ``kernel_warmup``: Loads the kernels in a service; the one module here that starts a process.
* ``pool/``: What a round knows of a pool: its settings, its jobs by what they ask for, its runs and its past rounds.
* ``sharing/``: Jobs that share devices: with whom, on which, who makes way for whom, and why one waits.
* ``aggregation/``: Which part of which run is on which aggregator.
* ``sizing/``: How many devices each elastic job of a pool gets, of which kind, and with which batch size: one decision.
"""
