"""
The executor: runs jobs on the devices of one node.

In reading order:

* ``__main__``: ``python -m penstock_executor``.
* ``machine``: What this node is to do. Pure.
* ``run_state``: What this node knows of its runs, and how a run ended.
* ``runner``: The executor at work.
* ``process_host``: This node's runs and what can be done to them.
* ``run_identity``: As whom a run's processes run on this node.
* ``run_credentials``: Credentials of a run: its account and the secrets of its job.
* ``parked_run``: Parked runs, and the rules by which they go on. Pure.
* ``parking``: The parked runs of this node: parked, continued and ended.
* ``gang``: Rendezvous and stop barrier.
* ``fence``: For how long runs go on while the matcher does not hear the node.
* ``agent_listener``: The socket that jobs talk to.
* ``checkpoint_folder``: The checkpoints on this node.
* ``checkpoint_tier``: Checkpoints in memory: written behind to the disk, and had from peers.
* ``job_folders``: Folders that belong to a job's user.
* ``checkpoint_transfer``: The checkpoint that a run goes on from, and its copy to this node.
* ``code_cache``: Files of jobs' code, and the folders in which runs work.
* ``code_fetch``: Code on its way to this node.
* ``device_watch``: How busy devices are, which of them fail, and which runs do nothing: told as it happens.
* ``health_watch``: Devices that fail, and that are well again.
* ``idle_watch``: Runs that hold devices and do nothing.
* ``memory_limits``: Memory limits of runs.
* ``output_store``: Output, kept and streamed.
* ``job_sessions``: Sessions of those who have entered a job.
* ``session_streams``: Their streams: numbered chunks, and a descriptor.
* ``series_store``: The metrics of runs as series.
* ``run_folders``: Files that outlive the executor.
* ``refusal``: End of the runs where the bus refuses the executor.
* ``fact_outbox``: Facts on their way to the log.
* ``telemetry``: Heartbeats, progress, output, series of metrics.
* ``device_sampler``: How busy the devices are, and who is on them.
* ``settings``: Settings.
* ``launchers/``: Launchers: what starts and ends the processes of a run.
* ``sharing/``: Runs that share their devices with others: who takes turns with whom, and what they hold.
"""
