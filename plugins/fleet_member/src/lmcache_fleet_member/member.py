"""A server as a member of a fleet: it keeps a connection to each coordinator, and proves that it is the one that registers."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from lmcache_core import (
    Condition,
    HttpAnswer,
    HttpContext,
    HttpRefusal,
    HttpRequest,
    HttpRoute,
    ResidencyFeed,
    ServerInfo,
    Service,
    ServiceContext,
)
from lmcache_fleet.http_connection import tls_context, token_in
from lmcache_fleet.messages import L1, PROOF_PATH, SECRET_BYTES, proof_of
from lmcache_fleet_member.freezing import Freezes
from lmcache_fleet_member.link import Link
from lmcache_fleet_member.settings import MemberSettings

RESOLVE_SECONDS: Final = 30.0
"""Between two looks at the addresses of coordinators' names."""
JOIN_SECONDS: Final = 5.0
"""How long the end of the server waits until coordinators were notified of it."""
SERVICE: Final = "fleet_member"
CHALLENGE_CHARACTERS: Final = 64


class Member(Service):
    """Opened before the server answers; its threads run from `start` to `close`."""

    def __init__(self, settings: MemberSettings, context: ServiceContext) -> None:
        self._context = context
        self._settings = settings
        self._lock = threading.Lock()
        self._opened: list[ResidencyFeed] = []
        self._secret = secrets.token_hex(SECRET_BYTES)
        """Binds the server's id, at all coordinators: they may have one state."""
        self._freezes: Freezes | None = None
        self._about: ServerInfo | None = None
        self._stopping = threading.Event()
        self._links: dict[tuple[str, str], Link] = {}
        """By URL, and one of its host's addresses."""

    def feeds(self) -> Sequence[ResidencyFeed]:
        """Those that are sent, of the adapters that there are now."""
        feeds = [feed for feed in self._context.feeds if feed.name == L1 or self._settings.l2_event_reporting]
        with self._lock:
            for feed in feeds:
                if feed not in self._opened:
                    feed.open()
            for feed in self._opened:
                if feed not in feeds:
                    feed.close()  # its adapter was removed: what it keeps is freed
            self._opened = feeds
        return feeds

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"coordinators": self._run}

    def start(self, server: ServerInfo) -> None:
        self._about = server

    def proof(self, challenge: str) -> str:
        """That this process has the secret which it registers with.  Any thread."""
        return proof_of(bytes.fromhex(self._secret), challenge)

    def close(self) -> None:
        self._stopping.set()
        if self._freezes is not None:
            self._freezes.end()
        with self._lock:
            for feed in self._opened:
                feed.close()

    def status(self) -> Mapping[str, Any]:
        return {"coordinators": [link.status() for link in list(self._links.values())]}

    def conditions(self) -> Sequence[Condition]:
        found = [link.condition() for link in list(self._links.values())]
        return [condition for condition in found if condition is not None]

    def look(self) -> tuple[Sequence[Link], Sequence[Link]]:
        """Ask for the addresses of the coordinators.  Returns the links of new ones, and those of addresses that are no longer
        named.  Of a name that cannot be resolved now, what is known of it stays."""
        assert self._about is not None, "after start()"
        if self._freezes is None:
            self._freezes = Freezes(lambda: self._context.control.freeze, self._settings.freeze_max_seconds)
        wanted: set[tuple[str, str]] = set()
        for url in self._settings.urls:
            known = {key for key in self._links if key[0] == url}
            wanted |= {(url, address) for address in addresses_of(url)} or known or {(url, "")}
        new = {
            (url, address): Link(
                url, address, self._settings, self.feeds, self._context, self._freezes, self._about, self._secret
            )
            for url, address in wanted - set(self._links)
        }
        gone = {key: link for key, link in self._links.items() if key not in wanted}
        self._links = {**{key: link for key, link in self._links.items() if key in wanted}, **new}
        return list(new.values()), list(gone.values())

    def _run(self) -> None:
        """Looks for coordinators, each of which has threads of its own: a slow one does not keep the others waiting."""
        threads: list[threading.Thread] = []
        wait = 0.0
        while not self._stopping.wait(wait):
            new, gone = self.look()
            for link in gone:
                link.stop()
            for link in new:
                for body in (link.run, link.run_deletes):
                    thread = threading.Thread(target=body, name=f"coordinator-{link.address}", daemon=True)
                    thread.start()
                    threads.append(thread)
            threads = [thread for thread in threads if thread.is_alive()]
            wait = RESOLVE_SECONDS
        for link in self._links.values():
            link.stop()
        until = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def open_member(settings: MemberSettings, context: ServiceContext) -> Member:
    """Raises ConfigError for a file that cannot be read."""
    token_in(settings.token_file)
    if any(url.startswith("https://") for url in settings.urls):
        tls_context(settings.ca, settings.cert, settings.key)
    return Member(settings, context)


def addresses_of(url: str) -> set[str]:
    """Of the host: those of IPv4, or those of IPv6 where there are no others, because a machine with both is one coordinator.
    Empty where the name cannot be resolved."""
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    by_family = {family: {str(each[4][0]) for each in found if each[0] == family} for family, *_ in found}
    return by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6, set())


class Proof(BaseModel):
    proof: str = Field(description="HMAC-SHA256 of the challenge, with the secret as the key, in hex.")


def open_proof(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    """`GET /fleet/proof/{challenge}`.

    A server that starts again at its address has another secret than before.  The coordinator gives it its id at once where
    the address that the id was registered with answers with this proof: then the process before it has ended."""

    def answer(request: HttpRequest) -> HttpAnswer:
        member, challenge = context.service(SERVICE), request.path["challenge"]
        if not isinstance(member, Member):
            raise HttpRefusal(404, "this server does not register at a coordinator")
        if len(challenge) != CHALLENGE_CHARACTERS:
            raise HttpRefusal(422, f"challenge: expected {CHALLENGE_CHARACTERS} characters, got {len(challenge)}")
        return HttpAnswer(Proof(proof=member.proof(challenge)))

    return [
        HttpRoute(
            "GET",
            PROOF_PATH + "{challenge}",
            answer,
            "Proves to a coordinator that this is the server that registers.",
            answers=Proof,
            refusals={404: "the server does not register at a coordinator", 422: "the challenge has another length"},
            open=True,
        )
    ]
