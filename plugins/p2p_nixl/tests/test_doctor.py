"""What `lmcache doctor` says of the channel."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lmcache_core import CheckResult, ResourceError
from lmcache_p2p_nixl import doctor
from lmcache_p2p_nixl.settings import NixlChannelSettings

PEERS = {"p2p_advertise_url": "tcp://127.0.0.1:7600", "p2p_transfer_engine": "auto"}


def found(trusted: bool = True, **values: Any) -> list[CheckResult]:
    return list(doctor.check(NixlChannelSettings.model_validate({"trusted_network": trusted}), {**PEERS, **values}.get))


def test_nothing_where_it_is_not_in_use() -> None:
    assert found(p2p_advertise_url=None) == []
    assert found(p2p_transfer_engine="tcp") == []


@pytest.mark.parametrize(("engine", "level"), [("auto", "ok"), ("nixl", "fail")])
def test_a_network_that_is_not_trusted(engine: str, level: str) -> None:
    (result,) = found(trusted=False, p2p_transfer_engine=engine)
    assert (result.level, "is not used" in result.text) == (level, True)


@pytest.mark.parametrize(("engine", "level"), [("auto", "warn"), ("nixl", "fail")])
def test_what_keeps_it_from_starting(engine: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = found(p2p_transfer_engine=engine, p2p_listen_url="tcp://localhost:7600")
    assert (result.level, "localhost" in result.text) == (level, True)

    def missing(name: str, address: str) -> None:
        raise ResourceError("UCX is not there")

    monkeypatch.setattr(doctor, "open_ucx_agent", missing)
    (result,) = found(p2p_transfer_engine=engine)
    assert (result.level, "UCX is not there" in result.text) == (level, True)


@pytest.mark.slow
def test_nixl_starts_and_doctor_ends_well() -> None:
    """In a process of its own, which UCX must not end at its exit; and through the command, which finds the check."""
    pytest.importorskip("nixl", reason="no build of NIXL is installed")
    trusted = '{"transfer_channel:nixl": {"trusted_network": true}}'
    command = (sys.executable, "-m", "lmcache_core", "doctor", "--coordinator-url", "http://127.0.0.1:1")
    options = ("--p2p-advertise-url", PEERS["p2p_advertise_url"], "--offer-settings", trusted)
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert "the channel nixl: NIXL and UCX start at 127.0.0.1" in done.stdout, (done.stdout, done.stderr)
    assert done.returncode in (0, 1), done.stderr
