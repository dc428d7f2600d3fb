"""Never a wrong byte, by one-sided reads of NIXL, whatever an owner's memory and its answers do."""

from __future__ import annotations

import pytest

from lmcache_p2p import lessee as lessee_module
from lmcache_p2p import peer as peer_module
from plugins.p2p.tests.wrong_bytes import Site
from plugins.p2p_nixl.tests.test_channel import channel

pytest.importorskip("nixl", reason="no build of NIXL is installed")


@pytest.mark.parametrize("faults", [2000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_no_fault_brings_a_wrong_byte(
    faults: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(peer_module, "DAMAGED_MAX", 1 << 40)  # the peer is asked on
    monkeypatch.setattr(lessee_module, "REJECTED_SECONDS", 0.0)
    with Site("nixl", channel, seed=1) as site:
        site.run(faults)
    print(request.node.name, sum(site.counts.values()), dict(sorted(site.counts.items())))
