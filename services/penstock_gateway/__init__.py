"""
The gateway: takes commands, answers queries, and says why.

In reading order:

* ``__main__``: ``python -m penstock_gateway``.
* ``machine``: Settings, state, apply, decide.
* ``job_sizes``: The sizes of an elastic job.
* ``run_accounts``: The runs of each job, and the device time that each held.
* ``node_history``: When each node was up, drained or gone.
* ``totals_fold``: What each job adds to the totals, and archived ones have added.
* ``dependencies``: Jobs that wait for other jobs or sweeps, and what becomes of them.
* ``time_limits``: When jobs have run for as long as they may.
* ``idle_runs``: What is done about runs that hold devices and do nothing.
* ``job_history``: A job's past.
* ``sweep_table``: The record of each sweep, as the log has it.
* ``open_jobs``: What each user has open.
* ``authority``: Who asks, and what each role may do and see.
* ``acceptance``: The rules of commands about jobs, sweeps, nodes and pools.
* ``job_entry``: Who may enter which process of a running job.
* ``job_dependencies``: What a new job may wait for.
* ``job_classes``: Which priority class a job may name, and which may be removed.
* ``people``: The rules of commands about people.
* ``team_reservations``: The rules of commands about reservations.
* ``archived_ids``: Whose the ids of archived jobs were.
* ``user_queues``: Requests of many users, served in turn.
* ``code_store``: What users upload of the folders in which their jobs run.
* ``code_collection``: What of it no job needs any more.
* ``commands``: Commands, by request and by inbox.
* ``notifications``: Of what people are told, what is still to be told them, and in which words.
* ``notification_sender``: The program that sends one message, by apprise.
* ``notification_targets``: Addresses of notifications, and the commands about rules.
* ``notifier``: Sends the messages that rules call for.
* ``bulk``: Many jobs by one request: submissions, and acts on all that a filter names.
* ``sight``: What people ask about, where they may see it.
* ``queries``: Queries, and what runs and services report outside of the log.
* ``answers``: From the read model to views.
* ``stats_answer``: Figures by pool and team.
* ``aggregation_answers``: Answers about aggregators and the jobs on them.
* ``series_answers``: The metrics of a job as series.
* ``usage_answers``: Accounts of device time, also of archived jobs.
* ``timeline_answers``: Who held which device when.
* ``why``: Why a job waits, and what is ruled out.
* ``dry_run``: What would happen to a job that is submitted now.
* ``job_filter``: The jobs that a request names by what they are.
* ``sweep_filter``: The sweeps that a request names, now or in the past.
* ``job_fit``: A job against the present nodes.
* ``pilot_outlooks``: What allocations could do for a job that waits.
* ``story``: One job's life in sentences.
* ``log_reader``: Past moments and raw facts, read from the log.
* ``snapshot_file``: The file of index snapshots.
* ``past_tables``: Tables as of a snapshot, read as they are asked for.
* ``past_fold``: A fold that begins at a snapshot, and writes the next one.
* ``past_models``: Read models of the past, from index snapshots.
* ``endpoints``: Requests decoded, answers encoded, ids found.
* ``runner``: The gateway on a bus.
"""
