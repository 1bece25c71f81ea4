"""
Programs that a script of sbatch finds on its nodes, with the standard library alone, for Python 3.7 and later.

They travel with the script (:mod:`penstock_cli.sbatch.spool`), so that they need nothing of the node but an
interpreter, whichever environment the script activates.

In reading order:

* ``batch``: The program of the job: it runs the script as Slurm does.
* ``allocation``: What a run was given, in Slurm's terms, and the variables that say so.
* ``hostlist``: Lists of hosts as Slurm writes them.
* ``srun``: One process for each task of a step.
* ``local_tasks``: Tasks on this machine.
* ``task_link``: The link between the nodes of an allocation, over which tasks are started.
* ``job_control``: ``scontrol``, ``scancel`` and ``sbatch`` within a job.
* ``job_list``: ``squeue``, ``sacct`` and ``scontrol show job``: Penstock's jobs as Slurm lists them.
"""
