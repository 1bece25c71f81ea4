"""
Launchers: what starts and ends the processes of a run.

In reading order:

* ``environment``: Ranks, environment and checks for every launcher.
* ``process_launcher``: Processes that outlive the executor.
* ``shim``: The program around each process.
"""
