"""Conformance of the channel, between two agents of one process and with real NIXL."""

from __future__ import annotations

from typing import ClassVar

import pytest

from lmcache_devkit import TransferChannelSuite

pytest.importorskip("nixl", reason="no build of NIXL is installed")


class TestShared(TransferChannelSuite):
    """UCX chooses, which on one machine is memory of the other process by the kernel."""

    offer = "nixl"
    answer_seconds: ClassVar[float] = 20.0

    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"load_timeout": 5.0, "trusted_network": True}


class TestTcp(TestShared):
    """As between machines without InfiniBand."""

    @pytest.fixture(autouse=True)
    def only_tcp(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UCX_TLS", "tcp,self")
