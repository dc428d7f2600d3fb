"""The connection of a member to one coordinator: it registers the server, sends what it has, and does what it is asked to."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from lmcache_client.errors import LMCacheError
from lmcache_core import (
    Change,
    Changes,
    Condition,
    HashChain,
    ObjectKey,
    Outcome,
    Overrun,
    ResidencyFeed,
    ServerInfo,
    ServiceContext,
    Severity,
    SnapshotPart,
    parse_canonical,
)
from lmcache_fleet.families import Family, vector_of
from lmcache_fleet.http_connection import RefusedError, UnreachableError, secured
from lmcache_fleet.messages import (
    HASH_BYTES,
    PAGE_KEYS_MAX,
    SECRET_HEADER,
    SOURCES_MAX,
    DeleteKeys,
    Freeze,
    FullSync,
    Heartbeat,
    JournalPage,
    Kind,
    Reply,
    Run,
    SnapshotPage,
    decode_reply,
    encode,
)
from lmcache_fleet.tokens import JOURNALS, TOKENS, TokensJournal, tokens_page
from lmcache_fleet_member.freezing import Freezes
from lmcache_fleet_member.settings import MemberSettings

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = (0.25, 0.5, 1.0)
"""The longest pauses after failures in a row; each is cut by up to half.  A coordinator that is back knows everything within
three seconds: the longest pause, a connection, and what is sent."""
MSGPACK: Final = {"Content-Type": "application/msgpack"}


class Link:
    """What this server and one coordinator have to do with each other.  `run` is the body of its thread; the rest is safe from
    any thread."""

    def __init__(
        self,
        url: str,
        address: str,
        settings: MemberSettings,
        feeds: Callable[[], Sequence[ResidencyFeed]],
        context: ServiceContext,
        freezes: Freezes,
        about: ServerInfo,
        secret: str,
    ) -> None:
        """`address`: one of the host's; empty: it cannot be resolved."""
        self.url: Final = url
        self.address: Final = address
        self._freezes = freezes
        self._settings = settings
        self._feeds = feeds
        self._context = context
        self._http = secured(url, settings.token_file, settings.ca, settings.cert, settings.key, address or None)
        self._stopping = threading.Event()
        self._deletes: SimpleQueue[DeleteKeys | None] = SimpleQueue()
        self._about = about
        self._secret = secret
        self._is_registered = False
        self._registered_metadata: Mapping[str, Any] = {}
        self._expects: Mapping[str, int] = {}
        self._types: Sequence[str] = ()
        """Of pages that views of the coordinator ask for."""
        self._epochs: dict[str, int] = {}
        """Of feeds, by name: those of which the coordinator has taken a page."""
        self._said: Mapping[str, int] | None = None
        """All feeds with their epochs, as the coordinator knows them."""
        self._snapshots = 0
        self._to_sync: set[str] = set()
        """Sources of which the coordinator wants a snapshot."""
        self._not_deleted: SimpleQueue[str] = SimpleQueue()
        """Sources from which objects were not deleted."""
        self._to_report: set[str] = set()
        """The same, until the coordinator knows."""
        self._failures = 0
        self._why = ""
        self._sent_keys = 0
        self._heard_at = float("-inf")

    def run(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            try:
                wait = self.step()
            except Exception:  # a bug; the server goes on
                logger.exception("a step failed, and is tried again url=%s", self.url)
                wait = RETRY_SECONDS[-1]
        if self._is_registered:
            self._leave()
        self._http.close()

    def step(self) -> float:
        """Everything that is due.  Returns the seconds until the next step."""
        try:
            return self._round()
        except LMCacheError as error:  # of the connection, of the token's file, or an answer that cannot be read
            return self._failed(error)

    def stop(self) -> None:
        self._stopping.set()
        self._deletes.put(None)

    def status(self) -> Mapping[str, Any]:
        return {
            "url": self.url,
            "address": self.address,
            "registered": self._is_registered,
            "failures_in_a_row": self._failures,
            "sent_keys": self._sent_keys,
        }

    def condition(self) -> Condition | None:
        if not self._failures:
            return None
        return Condition(
            "coordinator_unreachable",
            Severity.INFO,
            f"the coordinator at {self.url} cannot be used: {self._why}",
            "See whether it runs; the server serves without it, and registers when it is back.",
            f"coordinator {self.url} {self.address}".strip(),
        )

    def _round(self) -> float:
        if not self._is_registered:
            self._register()
        while not self._not_deleted.empty():
            self._to_report.add(self._not_deleted.get())
        not_deleted = tuple(self._to_report)[:SOURCES_MAX]
        feeds = self._feeds()
        tokens = JOURNALS.get(self._about.boot_id) if TOKENS in self._types else None
        names = {feed.name: feed.epoch for feed in feeds} | ({tokens.name: tokens.epoch} if tokens else {})
        is_due = time.monotonic() - self._heard_at >= self._settings.heartbeat_interval
        if is_due and self._metadata() != self._registered_metadata:
            self._post_registration()
        if not_deleted or names != self._said or is_due:
            path = f"/fleet/heartbeat/{quote(self._about.instance_id, safe='')}"
            says = Heartbeat(not_deleted, names if len(names) <= SOURCES_MAX else None)
            self._obey(self._post(path, encode(says)))
            self._said = names
            self._to_report.difference_update(not_deleted)
        for feed in feeds:
            self._send_news(feed)
        if tokens:
            self._send_tokens(tokens)
        if self._failures:
            logger.info("coordinator is back url=%s", self.url)
            self._failures = 0
        return min(self._settings.flush_interval, self._settings.heartbeat_interval)

    def _failed(self, error: LMCacheError) -> float:
        self._why = str(error)
        if isinstance(error, RefusedError) and error.status in (403, 404):
            self._is_registered = False  # it has forgotten this server, or never knew this incarnation
        if self._failures == 0:
            logger.warning("coordinator cannot be used, and is tried again url=%s error=%s", self.url, error)
        pause = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1
        return pause * random.uniform(0.5, 1.0)

    def _register(self) -> None:
        self._post_registration()
        self._is_registered, self._expects, self._epochs, self._said = True, {}, {}, None
        self._heard_at = float("-inf")
        logger.info("registered at coordinator url=%s instance=%s", self.url, self._about.instance_id)

    def _metadata(self) -> Mapping[str, Any]:
        """Lists of text under `member_metadata` in the status of a request module are said of this server, too."""
        metadata: dict[str, Any] = {}
        for status in self._context.server.status().get("modules", {}).values():
            given = status.get("member_metadata") if isinstance(status, Mapping) else None
            for name, texts in given.items() if isinstance(given, Mapping) else ():
                if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
                    metadata[str(name)] = texts
        return metadata | {"chunk_tokens": self._about.chunk_tokens, "version": self._about.version}

    def _post_registration(self) -> None:
        about, metadata = self._about, self._metadata()
        engine, http = urlsplit(about.engine_endpoint), urlsplit(about.http_endpoint or "")
        body = {
            "instance_id": about.instance_id,
            "ip": self._settings.advertise_ip or _own_ip(self.url),
            "http_port": http.port or 0,
            "mq_port": (engine.port or 0) if engine.scheme == "tcp" else 0,
            "incarnation": about.boot_id,
            "p2p_advertised_url": about.endpoints.get("p2p", ""),
            "metadata": metadata,
            **self._how_chunks_are_named(),
            "secret": True,
        }
        self._http.ask("POST", "/instances", msgspec.json.encode(body), self._headers())
        self._registered_metadata = metadata

    def _how_chunks_are_named(self) -> dict[str, Any]:
        """Servers that differ in this find nothing of each other, which the coordinator reports."""
        name = str(self._context.value_at("hash_algorithm") or HashChain.BLAKE3.name)
        family = Family(self._about.chunk_tokens, HashChain.named(name))
        return {"chunk_tokens": family.chunk_tokens, "chain": name.lower(), "test_vector": vector_of(family)}

    def _leave(self) -> None:
        try:
            self._http.ask("DELETE", f"/instances/{quote(self._about.instance_id, safe='')}", None, self._headers())
        except LMCacheError as error:
            logger.debug("coordinator did not hear that this server ends url=%s error=%s", self.url, error)

    # --- what this server has

    def _send_news(self, feed: ResidencyFeed) -> None:
        """Until the coordinator has everything, or the server ends."""
        while not self._stopping.is_set():
            if feed.name in self._to_sync and not self._send_snapshot(feed):
                return  # again in the next round
            expected = self._awaited(feed)
            begins = expected is None and feed.is_shared  # others tell of the same backend: from now on is enough
            part = feed.read(feed.end if begins else expected or 0, PAGE_KEYS_MAX)
            if isinstance(part, Overrun) and feed.is_shared:
                part = Changes(feed.end, ())  # the coordinator sees the gap
            if isinstance(part, Overrun):
                if not self._send_snapshot(feed) or self._awaited(feed) in (None, expected):
                    return  # it was not taken in; another one in the next round
                continue
            if not part.changes and part.first == expected:
                return
            spaces, runs = _packed(part.changes)
            page = JournalPage(**self._names(feed), spaces=spaces, runs=runs, first=part.first)
            self._sent_keys += page.keys
            self._obey(self._post("/fleet/journal", encode(page)))
            self._epochs[feed.name] = feed.epoch
            if self._awaited(feed) == expected:
                return  # nothing moved: not at once again

    def _send_tokens(self, journal: TokensJournal) -> None:
        """Until the coordinator has all.  What is not kept any more is passed over by an empty snapshot."""
        while not self._stopping.is_set():
            expected = self._awaited(journal)
            first, chunks = journal.read(expected or 0)
            about = self._names(journal)
            if first != expected:
                self._snapshots += 1
                page = SnapshotPage(
                    **about, content=TOKENS, snapshot=self._snapshots, begins_at=first, page=0, last=True
                )
                self._obey(self._post("/fleet/snapshot", encode(page)))
                self._epochs[journal.name] = journal.epoch
            elif chunks:
                self._sent_keys += len(chunks)
                self._obey(self._post("/fleet/journal", encode(tokens_page(about, first, chunks))))
            if self._awaited(journal) == expected:
                return

    def _awaited(self, feed: ResidencyFeed | TokensJournal) -> int | None:
        """None: nothing is known of it.  A number of an adapter that had its name before does not count."""
        return self._expects.get(feed.name) if self._epochs.get(feed.name) == feed.epoch else None

    def _send_snapshot(self, feed: ResidencyFeed) -> bool:
        """False: it is not whole.  A listing of a backend, which may fail, is announced first: the coordinator compares it
        with what others report from then on."""
        self._snapshots += 1
        begins_at, number = feed.end, 0
        if feed.is_shared:
            self._send_part(feed, SnapshotPart(begins_at, ()), 0, last=False)
            number = 1
        parts = feed.snapshot(PAGE_KEYS_MAX)
        try:
            part: SnapshotPart | None = next(parts)
            while part is not None and not self._stopping.is_set():
                following = next(parts, None)
                self._send_part(feed, part._replace(begins_at=begins_at), number, last=following is None)
                part, number = following, number + 1
        except (UnreachableError, RefusedError):
            raise
        except LMCacheError as error:
            logger.warning("source was not listed, and is listed again source=%s error=%s", feed.name, error)
            return False
        if part is None:
            self._to_sync.discard(feed.name)
        return part is None

    def _send_part(self, feed: ResidencyFeed, part: SnapshotPart, number: int, last: bool) -> None:
        spaces, runs = _packed(part.objects)
        page = SnapshotPage(
            **self._names(feed),
            spaces=spaces,
            runs=runs,
            snapshot=self._snapshots,
            begins_at=part.begins_at,
            page=number,
            last=last,
        )
        self._sent_keys += page.keys
        self._obey(self._post("/fleet/snapshot", encode(page)))
        self._epochs[feed.name] = feed.epoch

    def _names(self, feed: ResidencyFeed | TokensJournal) -> dict[str, Any]:
        return {
            "instance": self._about.instance_id,
            "incarnation": self._about.boot_id,
            "source": feed.name,
            "epoch": feed.epoch,
            "backend": feed.backend,
            "shared": feed.is_shared,
        }

    def _post(self, path: str, body: bytes) -> Reply:
        answer = self._http.ask("POST", path, body, {**MSGPACK, **self._headers()})
        self._heard_at = time.monotonic()
        return decode_reply(answer.body)

    def _headers(self) -> dict[str, str]:
        return {SECRET_HEADER: self._secret}

    # --- what the coordinator wants

    def _obey(self, reply: Reply) -> None:
        self._expects, self._types = reply.expects, reply.types
        self._freezes.asked(self.url + self.address, max((each.seconds for each in _freezes(reply)), default=0.0))
        for command in reply.commands:
            if isinstance(command, DeleteKeys):
                self._deletes.put(command)
            elif isinstance(command, FullSync):
                self._to_sync.add(command.source)

    def run_deletes(self) -> None:
        """The body of a thread of its own, because a backend may block it."""
        while (command := self._deletes.get()) is not None:
            try:
                outcomes = self._delete(command)
            except LMCacheError as error:
                logger.warning("objects were not deleted for the coordinator url=%s error=%s", self.url, error)
                outcomes = ()
            if not outcomes or any(each not in (Outcome.DONE, Outcome.MISSING) for each in outcomes):
                self._not_deleted.put(command.source)

    def _delete(self, command: DeleteKeys) -> Sequence[Outcome]:
        """Empty: there is no such adapter, or the server ends."""
        space = parse_canonical(bytes(HASH_BYTES) + command.space).space
        hashes = command.hashes
        keys = [ObjectKey(space, hashes[at : at + HASH_BYTES]) for at in range(0, len(hashes), HASH_BYTES)]
        for adapter in self._context.control.adapters.clients():
            if adapter.name == command.source:
                return adapter.delete(keys, self._stopping.is_set) or ()
        return ()


def _freezes(reply: Reply) -> list[Freeze]:
    return [command for command in reply.commands if isinstance(command, Freeze)]


def _packed(changes: Sequence[Change]) -> tuple[tuple[bytes, ...], tuple[Run, ...]]:
    numbers: dict[bytes, int] = {}
    runs = tuple(
        Run(
            Kind(change.kind.value),
            numbers.setdefault(change.space.tail, len(numbers)),
            change.object_bytes,
            change.hashes,
        )
        for change in changes
    )
    return tuple(numbers), runs


def _own_ip(url: str) -> str:
    """The address from which this machine reaches the coordinator; nothing is sent."""
    parts = urlsplit(url)
    try:
        family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
