"""Never a wrong byte: whatever an owner's memory, its answers and the way do, an object is right or a miss, and counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lmcache_core import TransferChannel
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p import lessee as lessee_module
from lmcache_p2p import peer as peer_module
from lmcache_p2p.tls import new_certificate
from plugins.p2p.tests.rig import shm, tcp
from plugins.p2p.tests.wrong_bytes import Site

Opener = Callable[[BorrowedMemory, str], TransferChannel]
SECONDS = 20.0
"""Without a byte, on a machine that is busy: nothing here is silent."""


@pytest.fixture(params=["shm", "tcp", "tls"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "shm":
        return shm
    if request.param == "tcp":
        return partial(tcp, load_timeout=SECONDS)
    certificate, key = new_certificate(tmp_path)
    return partial(tcp, load_timeout=SECONDS, tls_cert=certificate, tls_key=key)


@pytest.mark.parametrize("faults", [4000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_no_fault_brings_a_wrong_byte(
    opener: Opener, faults: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(peer_module, "DAMAGED_MAX", 1 << 40)  # the peer is asked on
    monkeypatch.setattr(lessee_module, "REJECTED_SECONDS", 0.0)
    with Site("shm" if opener is shm else "tcp", opener, seed=1) as site:
        site.run(faults)
    print(request.node.name, sum(site.counts.values()), dict(sorted(site.counts.items())))
