"""The promise of the memory service, at its client: whatever donors and agents do, every byte read is right."""

from __future__ import annotations

import pytest
from memory_histories import History


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.slow
def test_no_byte_is_lost_stale_or_torn_whatever_donors_and_agents_do(seed, tmp_path):
    history = History(seed, tmp_path)
    stats = history.run()
    assert not history.problems
    assert stats.sent_bytes > 0, "slabs were used"
