"""Quotas in a state that another coordinator may use, too."""

from __future__ import annotations

from pathlib import Path

from lmcache_coordinator.quotas import Quotas
from lmcache_coordinator.states.sqlite import SqliteSettings, open_sqlite


def test_a_default_that_was_set_counts_instead_of_the_coordinator_s_own(tmp_path: Path) -> None:
    """After a restart with other flags, and in the other coordinator."""
    state = open_sqlite(SqliteSettings(address=str(tmp_path / "state.db")))
    quotas, other = Quotas(state, 0, False), Quotas(state, None, True)
    assert (quotas.read().limit("a"), other.read().limit("a")) == (0, None)
    assert not quotas.read().were_set
    quotas.set_default(7)
    assert (quotas.last.limit("a"), other.read().limit("a"), Quotas(state, 3, True).last.limit("a")) == (7, 7, 7)
    assert quotas.read().were_set
    other.set("a", 1)
    other.set_default(None)
    assert [quotas.read().limit(salt) for salt in ("a", "b")] == [1, None]
    state.close()
