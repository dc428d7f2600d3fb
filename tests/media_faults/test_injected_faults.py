"""What comes back wrong from a backend is never served: the `fault_inject` adapter under a real server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.tests.injected import TRANSFERS, injected, mock
from tests.media_faults.conftest import OpenSite
from tests.media_faults.site import CHUNKS, wait_for

PROMPTS = range(1, 9)
ROUNDS = 3


@pytest.mark.parametrize(("inner", "verbs"), [("fs", ("store",)), ("fs", ("load",)), ("memory", TRANSFERS)])
def test_bytes_that_a_backend_has_wrong_are_missed_and_never_served(
    open_site: OpenSite, tmp_path: Path, inner: str, verbs: tuple[str, ...]
) -> None:
    """Each read compares every byte; what is wrong ends a hit, and does not stop what follows."""
    inside: Mapping[str, Any] = (
        {"type": "fs", "base_path": str(tmp_path / "l2")} if inner == "fs" else {"type": "memory"}
    )
    site = open_site(injected(inside, verbs, also={"seed": 5}, torn=0.1, short=0.1, corrupt=0.1))
    found = 0
    for _ in range(ROUNDS):
        site.store(*PROMPTS)
        site.settle()
        site.forget_l1()
        found += sum(site.hits(number) for number in PROMPTS)
        site.forget_l1()
    assert site.account["failed"] == 0, "the backend said that all is well"
    assert 0 < found < ROUNDS * len(PROMPTS) * CHUNKS
    assert site.status["prefetch"]["rejected"] > 0
    assert site.serves()
    site.check_books()


def test_whatever_a_backend_does_the_server_serves_on(open_site: OpenSite) -> None:
    """Errors, delays and stalls in every operation, beside bytes that change."""
    also = {"seed": 11, "delay_seconds": 0.02, "lookup": {"error": 0.1, "error_as": "missing", "delay": 0.2}}
    adapter = injected(mock(1, 500e6), ("store", "load", "delete"), also=also, error=0.2, delay=0.2)
    site = open_site({**adapter, "load": {"error": 0.2, "delay": 0.2, "torn": 0.05, "corrupt": 0.05}})
    found = 0
    for _ in range(ROUNDS):
        site.store(*PROMPTS)
        found += sum(site.hits(number) for number in PROMPTS)
        site.settle()
        site.forget_l1()
        found += sum(site.hits(number) for number in PROMPTS)
    assert found > 0
    assert site.account["failed"] > 0
    wait_for(lambda: site.status["l1"]["held"] == 0)
    site.check_books()


def test_an_adapter_that_hangs_is_said_to_and_the_rest_goes_on(open_site: OpenSite) -> None:
    site = open_site(injected(verbs=["store"], stall=1.0), "--l2-timeout-seconds", "0.5")
    site.store(1)
    wait_for(lambda: "adapter_silent" in site.conditions())
    assert not site.adapter["healthy"]
    assert site.serves(), "an adapter that hangs is not a reason to end a server whose L1 serves"
    assert "adapter_silent" in site.page()
    assert site.hits(1) == CHUNKS
    site.store(2)
    assert site.hits(2) == CHUNKS


def test_the_example_of_the_page_starts(open_site: OpenSite) -> None:
    site = open_site(json.loads('{"type": "mock", "max_size_gb": 256, "mock_bandwidth_gb": 10}'))
    site.store(1)
    site.settle()
    assert site.account["stored"] == CHUNKS
    site.forget_l1()
    assert site.hits(1) == CHUNKS
