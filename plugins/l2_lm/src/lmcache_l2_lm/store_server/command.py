"""`lmcache store-server`"""

from __future__ import annotations

import argparse
import logging
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_l2_lm.store_server.files import FileMedium
from lmcache_l2_lm.store_server.memory import MemoryMedium
from lmcache_l2_lm.store_server.server import CONNECTIONS_MAX, StoreServer
from lmcache_l2_lm.store_server.values import Values

logger = logging.getLogger(__name__)

GIB: Final = 2**30
STACK_BYTES: Final = 256 << 10
"""Of each connection's thread."""
GB_MAX: Final = 1 << 20
FILES: Final = 2 * CONNECTIONS_MAX + 64
"""Each connection may have a value open."""


def parser() -> CommandParser:
    made = CommandParser(
        "lmcache store-server",
        "Keep values for clients of the lm:// protocol, which has no passwords. The least recently used ones go first.",
    )
    made.add_argument("host", metavar="HOST", help="where it listens: 127.0.0.1 for this machine alone")
    made.add_argument("port", metavar="PORT", type=_port, help="0: any free one, which the log names")
    made.add_argument("--max-gb", metavar="GIB", type=_gigabytes, default=5.0, help="most that is kept (default: 5)")
    made.add_argument(
        "--path", metavar="FOLDER", type=Path, help="keep values in files there, across restarts (default: in memory)"
    )
    return made


def run(arguments: Sequence[str], context: CommandContext) -> int:
    """Runs until SIGTERM or SIGINT.  Raises ConfigError, ResourceError."""
    given = parser().parse_all(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s LMCache %(levelname)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    values = Values(int(given.max_gb * GIB))
    files = FileMedium(given.path) if given.path else None
    try:
        for key, stored in files.recover() if files else ():
            if not values.adopt(key, stored):
                stored.free()
        _allow_files()
        threading.stack_size(STACK_BYTES)
        server = StoreServer(given.host, given.port, values, files or MemoryMedium())
        server.start()
        _say_where(given.host, server.port, values, given.path)
        if given.path:
            _say_what_fits(given.path, given.max_gb, values.stats().used_bytes)
        stop.wait()
        server.stop()
        _say_what_was(values)
    finally:
        if files:
            files.close()
    return 0


def _say_where(host: str, port: int, values: Values, folder: Path | None) -> None:
    there = values.stats()
    place = f"in {folder}" if folder else "in memory"
    logger.info("store server listening on lm://%s:%d values=%d bytes=%d %s", host, port, *there, place)
    if not _is_loopback(host):
        logger.warning(
            "every client that reaches %s:%d may read and replace every value, since the lm:// protocol has no passwords; keep "
            "it in a network of its own", host, port
        )  # fmt: skip


def _say_what_fits(folder: Path, max_gb: float, used_bytes: int) -> None:
    room = (used_bytes + shutil.disk_usage(folder).free) / GIB
    if room < max_gb:
        logger.warning(
            "the disk of %s has %.1f GiB for values; with --max-gb %g they are refused when it is full, and with less than "
            "%.1f the least recently used ones go", folder, room, max_gb, room
        )  # fmt: skip


def _say_what_was(values: Values) -> None:
    there, counts = values.stats(), values.counts
    logger.info(
        "store server ends values=%d bytes=%d put=%d refused=%d hit=%d missed=%d evicted=%d",
        *there, *(counts[name] for name in ("put", "refused", "hit", "missed", "evicted")),
    )  # fmt: skip


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port, 0 to 65535")
    return int(text)


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size <= GB_MAX:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of GiB above 0, {GB_MAX} at most")
    return size


COMMAND: Final = Command(run, lambda: [parser()])
