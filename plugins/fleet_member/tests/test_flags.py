"""The flags of membership: what is refused names the flag, and without a coordinator nothing runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmcache_core import ConfigError
from lmcache_fleet_member.settings import CoordinatorFlags, apply

URL = "http://127.0.0.1:9300"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", ""])
@pytest.mark.parametrize("flag", ["--coordinator-heartbeat-interval", "--coordinator-l2-event-flush-interval"])
def test_an_interval_that_cannot_be_stops_the_start(flag: str, value: str) -> None:
    command = [sys.executable, "-m", "lmcache_core", "server", "--coordinator-url", URL, f"{flag}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert flag in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("url", ["coordinator:9300", "ftp://coordinator", "http://", f"{URL}/instances", f"{URL}?a=1"])
def test_a_url_that_is_not_a_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the base URL of a coordinator"):
        CoordinatorFlags.model_validate({"coordinator_url": (url,)})


def test_urls_come_from_a_list_and_lose_their_slash() -> None:
    flags = CoordinatorFlags.model_validate({"coordinator_url": f"{URL}/, http://other:1"})
    assert apply(flags, frozenset({"coordinator_url"}))["service:fleet_member"]["urls"] == (URL, "http://other:1")


def test_other_flags_need_a_coordinator() -> None:
    given = CoordinatorFlags.model_validate({"coordinator_advertise_ip": "10.0.0.1"})
    with pytest.raises(ConfigError, match="--coordinator-advertise-ip has no effect without --coordinator-url"):
        apply(given, frozenset({"coordinator_advertise_ip"}))
    assert apply(CoordinatorFlags.model_validate({}), frozenset()) == {}
