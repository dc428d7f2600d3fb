"""`lmcache pd-proxy`"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_http.server import HttpLimits, HttpServer

if TYPE_CHECKING:
    from litestar.types import ASGIApp

    from lmcache_pd.relay import Proxy

LIMITS: Final = HttpLimits(
    request_seconds=30.0, stalled_seconds=60.0, idle_seconds=60.0, connections=2048, requests=512
)
MODES: Final = ("sequential", "concurrent")


def parser() -> CommandParser:
    about = "Run a proxy in front of engines that prefill and engines that decode."
    made = CommandParser("lmcache pd-proxy", about)
    each = "again for each one"
    made.add_argument("--prefill", metavar="URL", action="append", default=[], help=f"an engine that prefills; {each}")
    made.add_argument("--decode", metavar="URL", action="append", default=[], help=f"an engine that decodes; {each}")
    made.add_argument(
        "--mode", choices=MODES, default=MODES[0],
        help="sequential: decode is asked when prefill has answered; concurrent: both at once, for connectors "
        "that wait for lmcache.handoff_id (default: %(default)s)",
    )  # fmt: skip
    made.add_argument("--host", metavar="HOST", default="127.0.0.1", help="where it listens (default: %(default)s)")
    made.add_argument("--port", metavar="PORT", type=_port, default=8000, help="0: any free one (default: %(default)s)")
    made.add_argument(
        "--coordinator-url", metavar="URL",
        help="prefill where most of a prompt is cached, as it knows; without --prefill and --decode, the engines with a role "
        "and an lmcache.engine_url are learned from it, too",
    )  # fmt: skip
    made.add_argument("--coordinator-token-file", metavar="FILE", help="file with the token for it")
    made.add_argument(
        "--prefill-timeout", metavar="SECONDS", type=_seconds, default=60.0,
        help="decode computes what prefill has not by then (default: %(default)g)",
    )  # fmt: skip
    made.add_argument(
        "--silence-timeout", metavar="SECONDS", type=_seconds, default=600.0,
        help="an engine that sends nothing for so long has failed (default: %(default)g)",
    )  # fmt: skip
    return made


def run(arguments: Sequence[str], context: CommandContext) -> int:
    """Runs until SIGTERM or SIGINT.  Raises ConfigError, and ResourceError for a port that is not free."""
    given = parser().parse_all(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s LMCache %(levelname)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for each request
    server = open_server(given)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    logging.getLogger(__name__).info("pd-proxy listens on %s mode=%s", server.endpoint, given.mode)
    stop.wait()
    server.stop()
    return 0


def open_server(given: argparse.Namespace) -> HttpServer:
    """Of what `parser` has read.  It has its port, and is not started.  Raises ConfigError, and ResourceError for a port that
    is not free."""
    proxy = _proxy(given)

    async def beside() -> None:
        await proxy.watch(learns=not given.prefill and not given.decode)

    def app() -> ASGIApp:
        from lmcache_pd.routes import proxy_app

        return proxy_app(proxy)

    return HttpServer(given.host, given.port, None, app, name="pd-proxy", flags="", limits=LIMITS, beside=beside)


def _proxy(given: argparse.Namespace) -> Proxy:
    """Raises ConfigError."""
    # imported here: the command's flags are read without an HTTP client
    from lmcache_pd.engines import Engines
    from lmcache_pd.prefixes import Prefixes
    from lmcache_pd.relay import Proxy

    if not given.decode and (given.prefill or not given.coordinator_url):
        raise ConfigError(
            "--decode is missing: name at least one engine, such as --decode http://127.0.0.1:8100, or none at all and the "
            "--coordinator-url of a fleet whose engines have an lmcache.engine_url"
        )
    prefill, decode = (
        [_url(f"--{role}", url) for url in dict.fromkeys(getattr(given, role))] for role in ("prefill", "decode")
    )
    if given.coordinator_token_file and not given.coordinator_url:
        raise ConfigError("--coordinator-token-file has no effect without --coordinator-url; give both or none")
    coordinator = _url("--coordinator-url", given.coordinator_url) if given.coordinator_url else None
    return Proxy(
        Engines(prefill, given.silence_timeout),
        Engines(decode, given.silence_timeout),
        Prefixes(coordinator, given.coordinator_token_file),
        is_concurrent=given.mode == "concurrent",
        prefill_seconds=given.prefill_timeout,
    )


def _url(flag: str, text: str) -> str:
    from lmcache_pd.engines import is_url

    if not is_url(text):
        raise ConfigError(f"{flag} {text!r} is not the address of a server; write it as http://10.0.0.1:8100")
    return text.rstrip("/")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port, 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, 86400 at most, and not {text}")
    return seconds


COMMAND: Final = Command(run, lambda: [parser()])
