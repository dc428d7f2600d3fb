"""Are the ports free, and who has them if not?"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

from pydantic import BaseModel

from lmcache_core.app.settings import flag_of
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.machine import Machine

_LISTENING = "0A"


def ports(context: CheckContext) -> Iterator[ProbeResult]:
    settings = context.settings
    wanted = []
    if not settings.host.startswith("ipc://"):
        wanted.append(("engine port", "--port", settings.host, settings.port, Level.FAIL))
    if not settings.disable_observability:
        wanted += [each for added in settings.added for each in _ports_of(added.values)]
    for name, flag, host, port, level in wanted:
        yield _port(context.machine, name, flag, host, port, level)


def _ports_of(values: BaseModel) -> Iterator[tuple[str, str, str, int, Level]]:
    """The ports of a plugin's settings: fields that say `listens_on` (the setting with the host) and the `word` for them, and
    maybe `unless`, a switch with which nothing listens, or `only_with`, one without which nothing does.  A port that
    `stops_the_start` of the server fails the check even if it was not given."""
    for name, field in type(values).model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict) or "listens_on" not in extra:
            continue
        port = getattr(values, name)
        is_off = "unless" in extra and getattr(values, str(extra["unless"]))
        is_off |= "only_with" in extra and not getattr(values, str(extra["only_with"]))
        if port and not is_off:
            must = name in values.model_fields_set or extra.get("stops_the_start")
            level = Level.FAIL if must else Level.WARN
            yield str(extra["word"]), flag_of(name, field), getattr(values, str(extra["listens_on"])), port, level


def _port(machine: Machine, name: str, flag: str, host: str, port: int, level: Level) -> ProbeResult:
    facts = {"host": host, "port": port}
    if port == 0:
        return ProbeResult(name, Level.OK, f"{flag} 0: any free one is taken", facts=facts)
    fault = _bind_fault(host, port)
    if fault is None:
        return ProbeResult(name, Level.OK, f"{host}:{port} is free", facts=facts)
    if fault != errno.EADDRINUSE:
        remedy = f"give another {flag.removesuffix('port')}host or {flag}"
        return ProbeResult(name, level, f"{host}:{port} cannot be bound: {os.strerror(fault)}", remedy, facts=facts)
    holder = port_holder(machine, port)
    by = f" by {holder}" if holder else "; who has it only root can see"
    return ProbeResult(
        name,
        level,
        f"{host}:{port} is taken{by}",
        f"stop what listens there, or give another {flag}",
        f"{flag} {port + 1}",
        {**facts, "holder": holder},
    )


def _bind_fault(host: str, port: int) -> int | None:
    """The error number with which it cannot be bound."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno or errno.EADDRNOTAVAIL
    return None


def port_holder(machine: Machine, port: int) -> str | None:
    """Name and number of the process that listens there, as in "lmcache (process 4711)"; None when we may not see it."""
    sockets = set()
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in machine.text(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    if not sockets:
        return None
    for process in sorted((machine.root / "proc").glob("[0-9]*")):
        with suppress(OSError):  # of another user, or gone meanwhile
            if any(os.readlink(file) in sockets for file in (process / "fd").iterdir()):
                return f"{machine.text(f'proc/{process.name}/comm') or 'a program'} (process {process.name})"
    return None
