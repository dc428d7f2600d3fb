"""What `lmcache doctor` says of a coordinator on this machine, by the variables that it would read."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from lmcache_client.errors import ConfigError
from lmcache_coordinator.settings import PREFIX, CoordinatorSettings, read_settings
from lmcache_core import CheckResult
from lmcache_http.tokens import Scope, read_tokens


def check(settings: None) -> Iterator[CheckResult]:
    """Nothing where none of its variables is set: then this machine is to have none.  Opens nothing and changes nothing."""
    if not any(name.startswith(PREFIX) for name in os.environ):
        return
    try:
        read = read_settings([])
        if read.token_file:
            read_tokens(read.token_file, tuple(Scope), "--token-file")
    except ConfigError as error:
        yield CheckResult("fail", str(error), "lmcache coordinator --help says what is allowed")
        return
    yield _port(read)
    if read.token_file and stat.S_IMODE(os.stat(read.token_file).st_mode) & 0o077:
        yield CheckResult(
            "warn",
            f"{read.token_file}: other users of this machine may read the tokens",
            f"chmod 600 {read.token_file}",
        )
    yield from _state(read.state)
    if find_spec("lmcache_native") is None:
        yield CheckResult(
            "warn",
            "the directory is the one in Python, which takes about ten times the memory and time",
            "pip install lmcache-native",
        )


def _port(settings: CoordinatorSettings) -> CheckResult:
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        remedy = f"unless a coordinator runs there already, choose another {PREFIX}PORT or {PREFIX}HOST"
        return CheckResult("warn", f"{where} cannot be bound: {error.strerror}", remedy)
    return CheckResult("ok", f"{where} is free")


def _state(state: str) -> Iterator[CheckResult]:
    state = state.removeprefix("sqlite:")
    if state == "memory":
        yield CheckResult(
            "warn",
            "quotas and secrets are lost at the end",
            f"name a file in {PREFIX}STATE, or a store that several share",
        )
    elif ":" not in state:
        file = Path(state).absolute()
        place = file if file.exists() else file.parent
        if not os.access(place, os.W_OK):
            yield CheckResult("fail", f"{place} cannot be written", f"create it for this user, or set {PREFIX}STATE")
