"""
What is behind ``penstock.session()``: the loop, its boundaries, checkpoints, and the talk with the executor.

In reading order:

* ``session``: The session of a training script, and its loops.
* ``setup``: What the executor sets in a process's environment, decoded once.
* ``boundary``: What happens between two steps: progress, checkpoints, stop, turn.
* ``agent_client``: The conversation with the node's executor, and the process's vote on the stop step.
* ``checkpoint``: The job's checkpoint folders.
* ``memory_tier``: Checkpoints in memory, of which two other nodes have copies before they count.
* ``parking``: Whether a process may be parked where it is preempted, and what its script does around that.
* ``torch_parking``: What PyTorch holds on GPUs, moved to the host's memory and back.
* ``loop_position``: Where a script is in its loops, so that a resumed one repeats nothing.
* ``sampler_state``: How far a sampler has come, and the batch of a run.
* ``sampler``: Which samples each step takes, over how many processes and in which batch.
* ``pace``: The time that iterations take, measured or emulated.
* ``torch_support``: What is asked of PyTorch: memory, the allocator's limit, the process group.
"""
