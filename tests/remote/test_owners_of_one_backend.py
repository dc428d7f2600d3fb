"""Two servers that would both keep order in one backend: only the one that owns it evicts, whatever the other believed."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from demo.child_process import ChildError
from demo.server_process import ServerProcess
from tests.media_faults.site import CHUNKS, SLOT_BYTES, wait_for
from tests.remote.backends import Backend
from tests.remote.site import RemoteSite, small_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("backend", ["s3", "s3-rclone", "redis"], indirect=True),
]

ROOM: Final = 10
"""Objects that the small owner has room for: one prompt, and not two."""
OWNS: Final = {"shared": True, "owner": True, "owner_lease_seconds": 2, "recount_seconds": 10}
EVICTS: Final = {
    "max_capacity_gb": ROOM * SLOT_BYTES / 2**30,
    "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.9, "eviction_ratio": 0.5},
}


def test_who_was_stopped_and_followed_evicts_only_when_it_owns_again(backend: Backend, tmp_path: Path) -> None:
    adapter = backend.through(backend.port, "owners/", **OWNS)
    sleeper = ServerProcess(small_server({**adapter, **EVICTS}), tmp_path / "sleeper.log")
    follower = ServerProcess(small_server(adapter), tmp_path / "follower.log")
    with sleeper, ExitStack() as undo:
        undo.callback(follower.kill)
        site = RemoteSite(sleeper)
        site.in_l2(1)
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:
            follower.start()
            other = RemoteSite(follower)
            wait_for(lambda: owns(other))
            other.in_l2(2, 3)
            assert len(backend.whole("owners/")) == 3 * CHUNKS
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        wait_for(lambda: usage(site)["objects"] == 3 * CHUNKS)  # it has counted what the other stored
        assert not owns(site)
        assert usage(site)["capacity_bytes"] is None
        assert other.all_hits(1, 2, 3)
        assert len(backend.whole("owners/")) == 3 * CHUNKS
        other.close()
        follower.stop()
        wait_for(lambda: len(backend.whole("owners/")) < 3 * CHUNKS)  # what it knows of, which is what it has stored
        assert owns(site)
        site.check_books()
        site.close()


def test_a_guest_is_refused_an_eviction(backend: Backend, tmp_path: Path) -> None:
    guest = backend.through(backend.port, "guests/", shared=True, **EVICTS)
    server = ServerProcess(small_server(guest), tmp_path / "server.log")
    with pytest.raises(ChildError):
        server.start()
    assert "field 'eviction' is for the owner" in server.log


def owns(site: RemoteSite) -> bool:
    return bool(site.adapter["counters"]["owner"])


def usage(site: RemoteSite) -> dict[str, Any]:
    """What the adapter says that it holds and may hold; waits until it knows."""
    wait_for(lambda: site.adapter["usage"] is not None)
    return dict(site.adapter["usage"])
