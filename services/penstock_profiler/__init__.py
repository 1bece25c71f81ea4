"""The profiler: how fast each workload is on each kind of device, measured once and refined ever after."""
