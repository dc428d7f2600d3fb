"""Two servers whose connections to each other and to the coordinator go through proxies, and faults during lookups."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from demo.server_process import ServerProcess
from lmcache_client.errors import LMCacheError
from lmcache_devkit import free_port
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.fleet.test_rounds import Standstills
from tests.peers.site import PeerServer, prompt, until
from tests.remote.tcp_proxy import CutAfter, Delay, Fault, Nothing, Refuse, ResetAfter, Silence, TcpProxy, Throttle, Way

LEASE_SECONDS: Final = 2.0
LOOKUP_SECONDS: Final = 3.0
"""In which the server answers a lookup, with all that it reads for it."""
PEER_SECONDS: Final = 1.0
"""In which peers do: `--p2p-lookup-timeout`.  A lookup that finds nothing there takes no longer."""
MARGIN_SECONDS: Final = 0.5
USED_AGAIN_SECONDS: Final = 5.0
STANDSTILL_SECONDS: Final = 0.5
CHUNKS: Final = 40
CUTS: Final[Sequence[Fault]] = (
    Refuse(),
    Silence(),
    Silence(frozenset({Way.ANSWERS})),
    ResetAfter(passed_bytes=3000),
    CutAfter(passed_bytes=3000),
)
SLOW: Final = Delay(seconds=0.08)
"""Each message takes so long, so that a fault finds a hello, a lookup or a lease under way."""
SLOW_READS: Final = Throttle(bytes_per_second=4_000_000)
STATES: Final = {"before the hello": 0.0, "looking up": 0.12, "leased": 0.3, "reading": 0.45, "ended": 0.8}
"""Seconds after the beginning of a lookup: about, because machines are busy."""
DATA_PORT: Final = """
import socket
_create = socket.create_server
class Shown(socket.socket):
    def getsockname(self):
        return ("127.0.0.1", {shown})
def create_server(address, **options):
    if address[1]:
        return _create(address, **options)
    return Shown(fileno=_create((address[0], {own}), **options).detach())
socket.create_server = create_server
"""
"""A module `sitecustomize`: the channel `tcp` listens at one port, and says another one: a proxy's."""


class Site:
    """The reader reads from the owner.  Everything is answered in time, or noted in `failures`."""

    def __init__(self, folder: Path, stack: ExitStack, engine: str, seed: int) -> None:
        self.chooser, self.counts, self.failures = random.Random(seed), Counter[str](), list[str]()
        ended = threading.Event()
        stack.callback(ended.set)
        self._standstills = Standstills(ended, STANDSTILL_SECONDS)
        self._prompts = 100
        self.coordinator = CoordinatorProcess(folder, "--instance-timeout", "5", "--health-check-interval", "0.5")
        stack.enter_context(self.coordinator)
        to_coordinator = [stack.enter_context(TcpProxy(self.coordinator.port)) for _ in range(2)]
        listens, data = free_port(), free_port()
        self.talk, self.bytes = stack.enter_context(TcpProxy(listens)), stack.enter_context(TcpProxy(data))
        (folder / "data").mkdir()
        (folder / "data" / "sitecustomize.py").write_text(DATA_PORT.format(shown=self.bytes.port, own=data))
        options = [
            *("--p2p-transfer-engine", engine, "--p2p-lookup-timeout", str(PEER_SECONDS)),
            *("--lookup-timeout-seconds", str(LOOKUP_SECONDS)),
            *("--offer-settings", f'{{"service:p2p": {{"lease_seconds": {LEASE_SECONDS}}}}}'),
        ]
        path = os.pathsep.join(filter(None, (str(folder / "data"), os.environ.get("PYTHONPATH"))))
        self.owner, self.reader = (
            PeerServer(
                name,
                f"http://{proxy.endpoint}",
                folder,
                *options,
                *(("--p2p-listen-url", f"tcp://127.0.0.1:{listens}") if name == "owner" else ()),
                peer_port=self.talk.port if name == "owner" else None,
                environment={"PYTHONPATH": path} if name == "owner" else {},
            )
            for name, proxy in zip(("owner", "reader"), to_coordinator, strict=True)
        )
        self._lines = {
            "owner": [self.talk, self.bytes, to_coordinator[0]],
            "reader": [self.talk, self.bytes, to_coordinator[1]],
            "coordinator": to_coordinator,
        }
        for server in (self.owner, self.reader):
            stack.enter_context(server.process)
        until(lambda: self._members() == [2, 2])
        until(self._is_used)

    # --- a round

    def round(self) -> str:
        """One fault, from its beginning to its end, and what must be right afterwards."""
        choose = self.chooser.choice
        victim, kind, state = choose(list(self._lines)), choose(["kill", "stop", "cut"]), choose(list(STATES))
        seconds = choose([0.3, 1.5, LEASE_SECONDS + 1.5])
        tokens = self._stored(CHUNKS)
        if state == "before the hello":
            self._forget_session()
        self.talk.switch(SLOW)
        self.bytes.switch(SLOW_READS)
        looking = threading.Thread(target=self._look_up, args=(tokens, victim == "reader" and kind != "cut"))
        looking.start()
        time.sleep(STATES[state] * self.chooser.uniform(0.8, 1.2))
        with self._fault(victim, kind):
            until_over = time.monotonic() + seconds
            if victim != "reader" or kind == "cut":
                self._look_up(prompt(self._number(), 4), False)
                self._store(self.reader, prompt(self._number(), 4))
            time.sleep(max(0.0, until_over - time.monotonic()))
            if victim == "reader" and seconds > LEASE_SECONDS:
                self._expect(lambda: self.owner.status()["leases"] == 0, 1.0, "a lease lives after its deadline")
        looking.join()
        self._expect(self._is_used, USED_AGAIN_SECONDS, "the peer is not used again")
        self._expect(self._is_balanced, LEASE_SECONDS + 1.0, "L1 is not balanced")
        self.counts[f"{victim} {kind}, {state}"] += 1
        return f"{victim} {kind} {seconds} s, {state}"

    @contextmanager
    def _fault(self, victim: str, kind: str) -> Iterator[None]:
        processes: dict[str, ServerProcess | CoordinatorProcess] = {
            "owner": self.owner.process,
            "reader": self.reader.process,
            "coordinator": self.coordinator,
        }
        process = processes[victim]
        lines = [self.talk, self.bytes, *self._lines[victim]]
        if kind == "cut":
            fault = self.chooser.choice(CUTS)
            for line in self._lines[victim]:
                line.switch(fault)
        elif kind == "kill":
            process.kill()
        else:
            os.kill(self._pid(victim), signal.SIGSTOP)
        try:
            yield
        finally:
            if kind == "kill":
                process.start()
            elif kind == "stop":
                os.kill(self._pid(victim), signal.SIGCONT)
            for line in lines:
                line.switch(Nothing())
            if kind == "kill":
                until(lambda: self._members() == [2, 2])

    def _pid(self, victim: str) -> int:
        if victim == "coordinator":
            assert self.coordinator.process is not None
            return self.coordinator.process.pid
        return {"owner": self.owner, "reader": self.reader}[victim].process.pid

    def _forget_session(self) -> None:
        """A lookup that is not answered ends it."""
        tokens = self._stored(4)
        os.kill(self.owner.process.pid, signal.SIGSTOP)
        try:
            self._look_up(tokens, False)
        finally:
            os.kill(self.owner.process.pid, signal.SIGCONT)
        time.sleep(2.1)

    # --- what engines do

    def _number(self) -> int:
        self._prompts += 1
        return self._prompts

    def _stored(self, chunks: int) -> list[int]:
        """A new prompt at the owner, which the directory knows a moment later."""
        tokens = prompt(self._number(), chunks)
        before = self._known()
        self._store(self.owner, tokens)
        deadline = time.monotonic() + 1.0
        while self._known() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return tokens

    def _known(self) -> int:
        rows = self.coordinator.ask("GET", "/directory/stats").body["keys_by_location"]
        return sum(row["keys"] for row in rows if row["instance_id"] == "owner")

    def _store(self, server: PeerServer, tokens: list[int]) -> None:
        def store() -> None:
            with server.engine(timeout_seconds=LOOKUP_SECONDS + MARGIN_SECONDS) as engine:
                if not engine.store(tokens):
                    self.failures.append(f"{server.name} does not store")
                engine.end()

        self._in_time(store)

    def _look_up(self, tokens: list[int], is_excused: bool) -> int:
        """`is_excused`: the server that is asked is killed or stopped."""
        hits = 0

        def look_up() -> None:
            nonlocal hits
            with self.reader.engine(timeout_seconds=LOOKUP_SECONDS + MARGIN_SECONDS) as engine:
                before, started = self._found_at_peers(is_excused), time.monotonic()
                hits = engine.lookup(tokens)
                taken = time.monotonic() - started
                if before == self._found_at_peers(is_excused):
                    self.counts["without peers"] += 1
                    if taken > PEER_SECONDS + MARGIN_SECONDS and not self._standstills.one_since(started):
                        self.failures.append(f"a lookup that found nothing at peers took {taken:.2f} s")
                found = engine.retrieve(tokens, end=hits * engine.chunk_tokens) if hits else []
                if found is not None and found != [engine.content(tokens, chunk) for chunk in range(hits)]:
                    self.failures.append("a wrong byte")
                engine.end()

        if is_excused:
            with suppress(LMCacheError, OSError):
                look_up()
        else:
            self._in_time(look_up)
        self.counts["hits" if hits else "misses"] += 1
        return hits

    def _found_at_peers(self, is_excused: bool) -> object:
        """Objects that lookups have found there.  Another answer each time from a server that may not answer."""
        return object() if is_excused else self.reader.status()["reader"]["counts"].get("hit", 0)

    def _in_time(self, work: Callable[[], None]) -> None:
        started = time.monotonic()
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, an engine has seen it
            if not self._standstills.one_since(started):
                self.failures.append(f"after {time.monotonic() - started:.1f} s: {error!r}")

    # --- what must be right

    def _is_used(self) -> bool:
        """Does the reader find at the owner what was stored a moment ago?"""
        return self._look_up(self._stored(4), False) == 4

    def _is_balanced(self) -> bool:
        for server in (self.owner, self.reader):
            l1, peers = server.process.status()["l1"], server.status()
            assert l1["state_counts_add_up"]
            if (l1["held"], l1["quarantined"], peers["leases"], peers["reader"]["pinned"]) != (0, 0, 0, 0):
                return False
        return True

    def _members(self) -> list[int]:
        return [server.status()["members"] for server in (self.owner, self.reader)]

    def _expect(self, good: Callable[[], Any], seconds: float, what: str) -> None:
        started = time.monotonic()
        while not good():
            late = time.monotonic() - started - seconds
            if late > (3 * seconds if self._standstills.one_since(started) else 0):
                said = [server.status() for server in (self.owner, self.reader)]
                raise AssertionError(f"{what} after {seconds} s: {said}")
            time.sleep(0.05)
