"""
Providers: where pilots run.

In reading order:

* ``provider``: The port of providers, and its errors.
* ``slurm``: Jobs of a Slurm cluster, by ``sbatch``, ``squeue`` and ``scancel``.
* ``hosts``: Processes on this machine, or on hosts that are reached by SSH.
"""

from penstock_allocator.providers.hosts import HostProvider
from penstock_allocator.providers.provider import PilotProvider, ProviderJob, ProviderSilent, SubmissionRefused
from penstock_allocator.providers.slurm import SlurmProvider

__all__ = [
    "HostProvider",
    "PilotProvider",
    "ProviderJob",
    "ProviderSilent",
    "SlurmProvider",
    "SubmissionRefused",
]
