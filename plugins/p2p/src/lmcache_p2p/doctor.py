"""What `lmcache doctor` says of peers: this server's address, its channels, and the peers that it would read from."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from lmcache_core import CheckResult, LMCacheError
from lmcache_fleet.http_connection import secured
from lmcache_p2p.coordinators import members_at
from lmcache_p2p.settings import Address, PeerSettings, address_of, is_loopback

SHM_ROOT: Final = Path("/dev/shm")
CONNECT_SECONDS: Final = 2.0
PEERS_MAX: Final = 64
"""That are connected to."""
NAMES_SHOWN: Final = 3


def check(settings: PeerSettings, value_at: Callable[[str], Any]) -> Iterator[CheckResult]:
    """Binds the address for a moment, connects to it and to the peers, and says nothing.  `value_at`: of other settings."""
    listen, advertised = address_of(settings.listen_url), address_of(settings.advertise_url)
    with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(listen)
            listener.listen(1)
            yield CheckResult("ok", f"{settings.listen_url} is free")
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            remedy = (
                "stop what listens there, unless it is this server" if is_taken else "give an address of this machine"
            )
            yield CheckResult(
                "fail", f"{settings.listen_url} cannot be bound: {error.strerror}", f"{remedy}: --p2p-listen-url"
            )
        yield _advertised(advertised)
    urls = list(value_at("coordinator_url") or ())
    yield from _loopback(advertised, urls)
    yield from _shared_memory(settings.transfer_engine, value_at)
    files = {name: value_at(f"coordinator_{name}") for name in ("token_file", "ca", "cert", "key")}
    yield from _peers(advertised, urls, files)


def _advertised(address: Address) -> CheckResult:
    fault = _fault(address)
    if fault is None:
        return CheckResult(
            "ok", f"{address.host}:{address.port} is reached from this machine; from no other one was it tried"
        )
    return CheckResult(
        "warn",
        f"{address.host}:{address.port} is not reached from this machine: {fault}",
        "unless it is translated on the way from other machines, correct --p2p-advertise-url",
    )


def _loopback(advertised: Address, coordinators: list[str]) -> Iterator[CheckResult]:
    far = [url for url in coordinators if not is_loopback(urlsplit(url).hostname or "")]
    if far and is_loopback(advertised.host):
        yield CheckResult(
            "warn",
            f"the coordinator {far[0]} is on another machine, and servers there cannot reach {advertised.host}",
            "give --p2p-advertise-url an address of this machine that they reach",
        )


def _shared_memory(engine: str, value_at: Callable[[str], Any]) -> Iterator[CheckResult]:
    """The channel `shm`."""
    if engine not in ("auto", "shm"):
        return
    level: Any = "fail" if engine == "shm" else "warn"
    instead = "" if engine == "shm" else "; servers of this machine use the channel tcp instead"
    if value_at("l1_shared_memory") is False:
        yield CheckResult(level, f"the channel shm needs L1 in /dev/shm{instead}", "leave --no-l1-shared-memory away")
        return
    try:
        with tempfile.NamedTemporaryFile(dir=SHM_ROOT, prefix="lmcache-doctor-"):
            yield CheckResult("ok", "the channel shm: /dev/shm can be written")
    except OSError as error:
        yield CheckResult(
            level, f"the channel shm: {SHM_ROOT}: {os.strerror(error.errno or 0)}{instead}", "mount a tmpfs there"
        )


def _peers(own: Address, coordinators: list[str], files: dict[str, Any]) -> Iterator[CheckResult]:
    """Nothing where no coordinator answers: the check of membership says why."""
    for url in coordinators:
        with closing(secured(url, **files)) as connection:
            try:
                members = members_at(connection)
            except LMCacheError:
                continue
        others = {each.instance: address_of(each.url.endpoint) for each in members}
        others = {name: address for name, address in others.items() if address != own}
        if not others:
            yield CheckResult("ok", f"{url} knows no other server that is a peer")
            return
        tried = dict(list(others.items())[:PEERS_MAX])
        with ThreadPoolExecutor(len(tried)) as pool:
            faults = {name: fault for name, fault in zip(tried, pool.map(_fault, tried.values()), strict=True) if fault}
        said = f"{len(tried) - len(faults)} of {len(tried)} peers that {url} names are reached from this machine"
        if faults:
            shown = "; ".join(f"{name}: {fault}" for name, fault in list(faults.items())[:NAMES_SHOWN])
            yield CheckResult("warn", f"{said}: {shown}", "see their --p2p-advertise-url, and firewalls on the way")
        else:
            yield CheckResult("ok", f"{said}; whether they reach it, lmcache doctor says there")
        return


def _fault(address: Address) -> str | None:
    """Why it cannot be connected to."""
    try:
        socket.create_connection(address, CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
