"""Conformance of the adapter `p2p` and of the channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from lmcache_devkit import L2AdapterSuite, TransferChannelSuite
from lmcache_p2p import adapter as adapter_module
from lmcache_p2p import peer as peer_module
from lmcache_p2p.reader import Reader
from lmcache_p2p.tls import new_certificate
from plugins.p2p.tests.rig import PeerMedia, ReaderRig, ScriptedOwner


class OneReader(NamedTuple):
    """Of every server there is."""

    reader: Reader

    def get(self, boot_id: str) -> Reader:
        return self.reader


class TestAdapter(L2AdapterSuite):
    """It reads from one owner, to whose memory `media` is the way."""

    offer = "p2p"
    payload_bytes_max = 8 << 20
    open_close_rounds = 100

    @pytest.fixture(autouse=True)
    def media(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerMedia]:
        monkeypatch.setattr(peer_module, "DAMAGED_MAX", 1_000)  # a test damages more than a peer may
        with ScriptedOwner(objects=0, size=256 << 20) as owner, ReaderRig(owner, lookup_timeout=20) as rig:
            monkeypatch.setattr(adapter_module, "READERS", OneReader(rig.reader))
            yield PeerMedia(owner)


class TestShm(TransferChannelSuite):
    offer = "shm"
    answer_seconds: ClassVar[float] = 10.0


class TestTcp(TransferChannelSuite):
    offer = "tcp"
    answer_seconds: ClassVar[float] = 10.0

    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"load_timeout": 5.0}


class TestEncryptedTcp(TestTcp):
    """On loopback it encrypts where a certificate is given."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, object]:
        certificate, key = new_certificate(tmp_path)
        return {"load_timeout": 5.0, "tls_cert": str(certificate), "tls_key": str(key)}
