"""The old name of `penstock_log`, for services of others; it goes with the next release."""

import sys

from penstock_log import *  # noqa: F403
from penstock_log import (
    JobRank as Rank,
)
from penstock_log import (
    JobState as State,
)
from penstock_log import (
    JobTable as Jobs,
)
from penstock_log import (
    MisplacedFact as Misplaced,
)
from penstock_log import (
    ProfileSample as Sample,
)
from penstock_log import __all__ as _names
from penstock_log import codec, job_state, lifecycle, spec, subjects

__all__ = [*_names, "Jobs", "Misplaced", "Rank", "Sample", "State"]  # noqa: PLE0604

for _name, _module in {
    "codec": codec,
    "lifecycle": lifecycle,
    "spec": spec,
    "states": job_state,
    "subjects": subjects,
}.items():
    sys.modules[f"{__name__}.{_name}"] = _module
