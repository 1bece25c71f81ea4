"""
The production deciders under virtual time: the same code that runs a cluster, with a clock that jumps.

In reading order:

* ``simulation``: A trace in, an outcome out.
* ``engine``: Event queue, virtual log, decider hosts.
* ``cluster_script``: What a virtual cluster is to live through.
* ``executors``: Virtual executors and the environment.
* ``elastic_executors``: Elastic jobs. (← sim.virtual.resizing)
* ``tasks``: How much work jobs really are.
* ``policies``: Policies as settings of the deciders.
"""
