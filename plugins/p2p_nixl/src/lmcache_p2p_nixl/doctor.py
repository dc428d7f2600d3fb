"""What `lmcache doctor` says of the channel `nixl`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from lmcache_core import CheckResult, LMCacheError
from lmcache_nixl_agent.ucx import INFINIBAND, open_ucx_agent
from lmcache_p2p_nixl.settings import NixlChannelSettings


def check(settings: NixlChannelSettings, value_at: Callable[[str], Any]) -> Iterator[CheckResult]:
    """Starts NIXL with UCX at the address of peers for a moment.  Nothing where there are no peers, or they use another
    channel."""
    url, engine = value_at("p2p_listen_url") or value_at("p2p_advertise_url"), value_at("p2p_transfer_engine")
    if not url or engine not in ("auto", "nixl"):
        return
    is_asked_for = engine == "nixl"
    if not settings.trusted_network:
        yield CheckResult(
            "fail" if is_asked_for else "ok",
            "the channel nixl is not used: it needs a network whose every user is trusted",
            'where that is so, give --offer-settings \'{"transfer_channel:nixl": {"trusted_network": true}}\''
            if is_asked_for
            else "",
        )
        return
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host)
        open_ucx_agent(f"doctor-{os.getpid()}", host).close()
    except (ValueError, OSError, LMCacheError) as error:
        yield CheckResult(
            "fail" if is_asked_for else "warn",
            f"the channel nixl: {error}" + ("" if is_asked_for else "; another channel is used instead"),
            "give --p2p-listen-url an IP address of this machine, and install nixl with UCX",
        )
        return
    adapters = sorted(each.name for each in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    over = (
        f"InfiniBand ({', '.join(adapters)})" if adapters else "TCP and shared memory; there is no InfiniBand adapter"
    )
    yield CheckResult("ok", f"the channel nixl: NIXL and UCX start at {host}, over {over}")
