"""
The commands of ``penstock``, one file for each group; a command is found by its name.

In reading order:

* ``submit``: ``submit``, ``run``.
* ``sbatch``: ``sbatch``.
* ``jobs``: ``ps``, ``show``, ``why``, ``story``, ``events``, ``logs``, ``cancel``, ``hold``, ``release``.
* ``metrics``: ``metrics``.
* ``interactive``: ``exec``, ``shell``, ``attach``.
* ``transfers``: ``port-forward``, ``cp``.
* ``cluster``: ``nodes``, ``drain``, ``resume``, ``remove``, ``status``, ``rejected``, ``doctor``.
* ``policies``: ``policy``, ``profile``.
* ``sweeps``: ``tune``, ``sweep``.
* ``lanes``: ``lanes bench``, ``lanes estimate``.
* ``memory``: ``memory ls``, ``show``, ``top``, ``serve`` and ``bench``.
* ``aggregation``: ``aggregation ls`` and ``show``.
* ``accounts``: ``usage``, ``report``.
* ``up``: ``up``, ``down``, ``service``, ``purge``.
* ``simulate``: ``sim``, ``sweep sim``.
* ``replay``: ``replay``.
* ``shadow``: ``shadow``.
* ``trace``: ``trace``.
"""
