"""The old name of `penstock_log`, for services of others; it goes with the next release."""

import sys

from penstock_log import *  # noqa: F403
from penstock_log import __all__, codec, job_state, lifecycle, spec, subjects

__all__ = [*__all__]  # noqa: PLE0604

for _name, _module in {
    "codec": codec,
    "lifecycle": lifecycle,
    "spec": spec,
    "states": job_state,
    "subjects": subjects,
}.items():
    sys.modules[f"{__name__}.{_name}"] = _module
