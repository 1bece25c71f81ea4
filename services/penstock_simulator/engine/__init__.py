"""
The production deciders under virtual time: the same code that runs a cluster, with a clock that jumps.

In reading order:

* ``simulation``: A trace in, an outcome out.
* ``engine``: Event queue, virtual log, decider hosts.
* ``cluster_script``: Everything that happens to a virtual cluster from outside.
* ``executors``: Virtual executors and the environment.
* ``elastic_executors``: Executors of elastic jobs.
* ``elastic_sizing``: Elastic jobs on counted devices, by the autoscaler's decision alone.
* ``tasks``: The work that jobs really have, and what becomes of it.
* ``policies``: Policies as settings of the deciders.
"""
