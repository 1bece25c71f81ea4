"""
Scripts of Slurm's ``sbatch``: read, turned into jobs, and run on nodes as Slurm runs them.

In reading order:

* ``options``: The options of sbatch, and what becomes of each.
* ``script``: A script and the options of its ``#SBATCH`` lines.
* ``job``: The options as fields of a specification, and the plan by which the script is run.
* ``spool``: The folder that is uploaded with a script.
* ``submission``: From a script and what was typed to a job that can be submitted.
* ``node_programs/``: The programs that the script finds on its nodes.
"""
