"""
What a round knows of a pool: its settings, its jobs by what they ask for, its runs and its past rounds.

In reading order:

* ``scheduler_state``: The fold that rounds are decided from.
* ``pool_view``: One pool as a round sees it, with what rounds remember.
* ``pool_index``: Its jobs and devices by what rounds ask.
* ``run_columns``: Runs and grants as columns.
* ``pool_settings``: By what a pool is run: file, pool, live.
"""
