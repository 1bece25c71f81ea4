"""
Providers: where pilots run.

In reading order:

* ``provider``: The port of providers, and its errors.
* ``slurm``: Jobs of a Slurm cluster, by ``sbatch``, ``squeue`` and ``scancel``.
* ``hosts``: Processes on this machine, or on hosts that are reached by SSH.
* ``kubernetes``: Pods of a Kubernetes cluster.
* ``pod_manifest``: The Pods and Secrets of pilots, as they are made.
* ``pod_state``: What a Pod says of its pilot, in plain words.
* ``pod_watch``: The Pods of a namespace, as the API server last said.
* ``kubernetes_api``: Requests to an API server.
"""

from penstock_allocator.providers.hosts import HostProvider
from penstock_allocator.providers.kubernetes import KubernetesProvider
from penstock_allocator.providers.provider import PilotProvider, ProviderJob, ProviderSilent, SubmissionRefused
from penstock_allocator.providers.slurm import SlurmProvider

__all__ = [
    "HostProvider",
    "KubernetesProvider",
    "PilotProvider",
    "ProviderJob",
    "ProviderSilent",
    "SlurmProvider",
    "SubmissionRefused",
]
