"""
The demo: real training jobs on one node with emulated devices.

``workload`` says which jobs there are and why what is claimed of them holds; ``play`` submits them and waits for them;
``events`` and ``screen`` show what happens; ``outcome`` holds each job to what was claimed, and ``comparison`` runs the
workload under virtual time, beside FIFO. ``emulation`` fits the devices to the host.
"""
