"""Servers on one Redis, two coordinators on one etcd, engines, operators who set quotas, and random faults.

After each fault there is one leader; the directory of both coordinators has each key of each L1, and no other; and usage is
what a listing says, to the byte.  No request of an engine failed at a server that ran.  What operators were answered is
possible.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from demo.server_process import ServerProcess
from lmcache_client.errors import NoAnswerError
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.fleet.etcd_server import etcd_server
from tests.fleet.message_proxy import Fate, MessageProxy
from tests.fleet.test_two_coordinators import Pair, signal_to
from tests.fleet.test_two_servers import CHUNK_TOKENS, GIB, OBJECT_BYTES, prompt
from tests.remote.redis_servers import RedisServer
from tests.remote.tcp_proxy import CutAfter, Nothing, Refuse, ResetAfter, Silence, TcpProxy, Way

ROUNDS: Final = 200 if os.environ.get("LMCACHE_TEST_LONG") else 30
TIMEOUT_SECONDS: Final = 3.0
LONG_SECONDS: Final = 60.0
RIGHT_SECONDS: Final = 3.0
"""Until directories are right again after a fault."""
MARGIN_SECONDS: Final = 3.0
"""For a machine with ten processes and two cores."""
QUIET_SECONDS: Final = 40.0
"""Until usage is, too: shared L2 is listed, and once more after the time limit, because others may have reported late."""
STANDSTILL_SECONDS: Final = 3.0
SALTS: Final = ("a", "b", "c")
PROMPTS: Final = 100
PAGE: Final = 1000
WALL_CLOCK: Final = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {seconds}
time.time_ns = lambda: _time_ns() + {seconds} * 10**9
"""
TCP_FAULTS: Final = (
    Refuse(),
    Silence(),
    Silence(frozenset({Way.ANSWERS})),
    ResetAfter(passed_bytes=300),
    CutAfter(passed_bytes=300),
)


def with_wall_clock(folder: Path, hours: int) -> dict[str, str]:
    """Variables of a process whose wall clock is off by `hours`.  Its timers go on as they are."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(WALL_CLOCK.format(seconds=hours * 3600))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


class Standstills:
    """Notices that the machine paused, and no server could answer: a short sleep then takes seconds."""

    def __init__(self, ended: threading.Event, seconds: float = STANDSTILL_SECONDS) -> None:
        """Its thread ends with `ended`.  `seconds`: how long a pause has to be."""
        self._last, self._seconds = 0.0, seconds
        threading.Thread(target=self._run, args=(ended,), daemon=True).start()

    def one_since(self, moment: float) -> bool:
        return self._last > moment

    def _run(self, ended: threading.Event) -> None:
        awake = time.monotonic()
        while not ended.wait(0.1):
            before, awake = awake, time.monotonic()
            if awake - before > self._seconds:
                self._last = awake


class Engines:
    """One after the other, at servers that run: they store, look up, and read what they have stored."""

    def __init__(self, servers: Sequence[ServerProcess], seed: int) -> None:
        self._servers = servers
        self._chooser = random.Random(seed)
        self._turn = threading.Lock()  # one request at a time; guards all below
        self._out: set[int] = set()
        self.failures: list[str] = []
        self.requests = 0
        self._go_on = threading.Event()
        self._ended = threading.Event()
        self._standstills = Standstills(self._ended)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._ended.set()
        self._thread.join()

    @contextmanager
    def traffic(self) -> Iterator[None]:
        self._go_on.set()
        try:
            yield
        finally:
            self._go_on.clear()
            with self._turn:  # the one that is under way has ended
                pass

    @contextmanager
    def without(self, server: int) -> Iterator[None]:
        with self._turn:
            self._out.add(server)
        yield
        with self._turn:
            self._out.remove(server)

    def _run(self) -> None:
        while not self._ended.is_set():
            if not self._go_on.wait(0.1):
                continue
            with self._turn:
                number = self._chooser.choice([each for each in range(len(self._servers)) if each not in self._out])
                started = time.monotonic()
                try:
                    self._one(self._servers[number], self._chooser.choice(SALTS))
                except Exception as error:  # noqa: BLE001 - whatever it is, an engine has seen it
                    if not isinstance(error, NoAnswerError) or not self._standstills.one_since(started):
                        self.failures.append(f"server-{number}: {error!r}")
            time.sleep(0.01)

    def _one(self, server: ServerProcess, salt: str) -> None:
        with FakeEngine(f"tcp://127.0.0.1:{server.port}", salt=salt) as engine:
            for _ in range(3):
                tokens = prompt(self._chooser.randrange(PROMPTS))
                hits = engine.lookup(tokens)
                found = engine.retrieve(tokens, end=hits * CHUNK_TOKENS) if hits else []
                if found is not None:  # else it went meanwhile
                    assert found == [engine.content(tokens, chunk) for chunk in range(hits)], "a wrong byte"
                engine.store(tokens)
                engine.end()
                self.requests += 3


class Site:
    def __init__(self, folder: Path, servers: int, stack: ExitStack, seed: int) -> None:
        self.chooser = random.Random(seed)
        redis = RedisServer(folder / "redis", free_port(), ("--save", ""))
        redis.start()
        stack.callback(redis.kill)
        self.etcd = stack.enter_context(etcd_server(folder / "etcd"))
        etcd_port = urlsplit(self.etcd.url).port
        assert etcd_port is not None
        self.to_etcd = [stack.enter_context(TcpProxy(etcd_port)) for _ in range(2)]
        one, two = (f"etcd:http://{proxy.endpoint}" for proxy in self.to_etcd)
        flags = ("--eviction-check-interval", "0.5", "--instance-timeout", str(TIMEOUT_SECONDS))
        self.pair = Pair(
            folder,
            (one, two),
            stack,
            *(*flags, "--health-check-interval", "0.5"),
            pause_seconds=1.0,
            environments=({}, with_wall_clock(folder / "later", 1)),
        )
        self.messages = [
            stack.enter_context(MessageProxy(each.port, random.Random(seed))) for each in self.pair.coordinators
        ]
        adapter = {"type": "redis", "url": f"redis://127.0.0.1:{redis.port}", "shared": True}
        self.proxies: list[list[TcpProxy]] = []
        self.servers: list[ServerProcess] = []
        for number in range(servers):
            proxies = [stack.enter_context(TcpProxy(each.port)) for each in self.messages]
            options = [
                *("--l1-size-gb", "0.004", "--chunk-size", str(CHUNK_TOKENS), "--l2-adapter", json.dumps(adapter)),
                *(word for each in proxies for word in ("--coordinator-url", f"http://{each.endpoint}")),
                *("--instance-id", f"server-{number}", "--coordinator-heartbeat-interval", "0.5"),
                *("--coordinator-l2-event-reporting", "--coordinator-l2-event-flush-interval", "0.1"),
            ]
            environment = with_wall_clock(folder / "earlier", -1) if number == servers - 1 else {}
            self.proxies.append(proxies)
            server = ServerProcess(options, folder / f"server-{number}.log", environment=environment)
            self.servers.append(stack.enter_context(server))
        self.pair.wait_for_one_leader()
        quota = {"limit_gb": 40 * OBJECT_BYTES / GIB}
        assert self.pair.coordinators[0].ask("PUT", "/l2/quota/c", quota).status == 200
        for salt in ("a", "b"):
            assert self.pair.write(self.pair.coordinators[1], salt) == 200
        self.engines = Engines(self.servers, seed)
        stack.enter_context(self.engines.running())

    def fault(self) -> str:
        """One, from its beginning to its end, with traffic meanwhile."""
        choose = self.chooser.choice
        kind = choose(["member", "member", "coordinator", "coordinator", "etcd", "partition", "messages", "messages"])
        with self.engines.traffic():
            time.sleep(0.5)
            said = getattr(self, f"_{kind}")(choose([0.5, 2.0, 2 * TIMEOUT_SECONDS]))
        return f"{kind}: {said}"

    def _member(self, seconds: float) -> str:
        number = self.chooser.randrange(len(self.servers))
        server, kills = self.servers[number], self.chooser.random() < 0.5
        if not kills and self.chooser.random() < 0.05:
            seconds = LONG_SECONDS
        with self.engines.without(number):
            if kills:
                server.kill()
                time.sleep(seconds)
                server.start()
            else:
                with stopped(server.pid):
                    time.sleep(seconds)
                seconds_until(lambda: "" if server.answers_ping(1.0) else "it does not answer", QUIET_SECONDS)
        return f"server-{number} {'killed' if kills else 'stopped'} {seconds}"

    def _coordinator(self, seconds: float) -> str:
        leader = (self.pair.leaders() or self.pair.coordinators)[0]
        victim = self.chooser.choice([leader, self.pair.other(leader)])
        kills = self.chooser.random() < 0.5
        if kills:
            victim.kill()
            time.sleep(seconds)
            victim.start()
        else:
            signal_to(victim, signal.SIGSTOP)
            time.sleep(seconds)
            signal_to(victim, signal.SIGCONT)
        return f"{'leader' if victim is leader else 'the other'} {'killed' if kills else 'stopped'} {seconds}"

    def _etcd(self, seconds: float) -> str:
        kills = self.chooser.random() < 0.5
        begin, end = (self.etcd.kill, self.etcd.start) if kills else (self.etcd.freeze, self.etcd.thaw)
        begin()
        time.sleep(2 * seconds)
        end()
        return f"{'killed' if kills else 'stopped'} {2 * seconds}"

    def _partition(self, seconds: float) -> str:
        """A server from one coordinator, one coordinator from all servers, or from etcd."""
        which = self.chooser.randrange(2)
        one = self.chooser.randrange(len(self.servers))
        name, lines = self.chooser.choice(
            [
                (f"server-{one} from {which}", [self.proxies[one][which]]),
                (f"all from {which}", [proxies[which] for proxies in self.proxies]),
                (f"{which} from etcd", [self.to_etcd[which]]),
            ]
        )
        fault = self.chooser.choice(TCP_FAULTS)
        for line in lines:
            line.switch(fault)
        time.sleep(2 * seconds)
        for line in lines:
            line.switch(Nothing())
        return f"{name} {fault} {2 * seconds}"

    def _messages(self, seconds: float) -> str:
        fates = self.chooser.sample(list(Fate), self.chooser.randint(2, 4))
        for proxy in self.messages:
            proxy.disturb(*fates)
        time.sleep(2 * seconds)
        for proxy in self.messages:
            proxy.disturb()
        return f"{', '.join(fates)} {2 * seconds}"

    # --- what is to be right

    def directory_wrong(self) -> str:
        """What a coordinator does not know as it is; empty: all is right."""
        has = {f"server-{number}": l1_keys(server) for number, server in enumerate(self.servers)}
        return next(filter(None, (directory_wrong(each, has) for each in self.pair.coordinators)), "")

    def usage_wrong(self) -> str:
        listed: Counter[str] = Counter()
        for entry in entries(self.servers[0], "l2"):
            listed[entry["cache_salt"]] += entry["stored_bytes"]
        for coordinator in self.pair.coordinators:
            reply = coordinator.ask("GET", "/l2/status")
            if reply.status != 200:
                return f"{reply}"
            salts = reply.body["by_cache_salt"]
            used = Counter({each["cache_salt"]: round(each["usage_gb"] * GIB) for each in salts if each["usage_gb"]})
            if used != listed:
                return f"usage at {coordinator.url}: {dict(used)} is not {dict(listed)}"
        return ""


def l1_keys(server: ServerProcess) -> set[tuple[str, str]]:
    """Salt and hash of each."""
    return {(entry["cache_salt"], entry["chunk_hash"]) for entry in entries(server, "l1")}


def entries(server: ServerProcess, tier: str) -> list[Any]:
    found, token = [], ""
    while True:
        url = f"http://127.0.0.1:{server.http_port}/cache/objects?tier={tier}&page_size={PAGE}{token}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            page = json.load(answer)
        found += page["entries"]
        if page["next_page_token"] is None:
            return found
        token = f"&page_token={page['next_page_token']}"


def directory_wrong(coordinator: CoordinatorProcess, has: Mapping[str, set[tuple[str, str]]]) -> str:
    """Where its directory is not what these servers have in L1; empty: nowhere."""
    rows = coordinator.ask("GET", "/directory/stats").body["keys_by_location"]
    counts = {row["instance_id"]: row["keys"] for row in rows if row["source"] == "l1"}
    sizes = {name: len(each) for name, each in has.items()}
    if {name: counts.get(name, 0) for name in has} != sizes:
        return f"L1 at {coordinator.url}: {counts} is not {sizes}"
    asked = [
        {"chunk_hash_hex": chunk, "model_name": "model", "kv_rank": 0x01000100, "cache_salt": salt}
        for salt, chunk in set().union(*has.values())
    ]
    knows: dict[str, set[tuple[str, str]]] = {name: set() for name in has}
    for result in coordinator.ask("POST", "/directory/lookup", {"keys": asked}).body["results"]:
        for place in result["placements"]:
            if place["tier"] == "l1":
                knows[place["instance_id"]].add((result["key"]["cache_salt"], result["key"]["chunk_hash_hex"]))
    return "" if knows == has else f"keys at {coordinator.url} are not those of L1"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def seconds_until(is_right: Callable[[], str], limit: float) -> float:
    started = time.monotonic()
    while wrong := _or_error(is_right):
        assert time.monotonic() < started + limit, wrong
        time.sleep(0.1)
    return time.monotonic() - started


def _or_error(is_right: Callable[[], str]) -> str:
    try:
        return is_right()
    except OSError as error:  # one that comes up
        return str(error)


@pytest.mark.parametrize(
    ("servers", "rounds"),
    [(2, 3), pytest.param(5, ROUNDS, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
)
def test_after_each_fault_all_is_right(servers: int, rounds: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, servers, stack, seed=1)
        with site.engines.traffic():
            time.sleep(1.0)
        seconds_until(site.directory_wrong, QUIET_SECONDS)
        with ExitStack() as running:
            site.pair.traffic(running, 1)
            for number in range(rounds):
                fault = site.fault()
                directory = seconds_until(site.directory_wrong, RIGHT_SECONDS + MARGIN_SECONDS)
                usage = directory + seconds_until(site.usage_wrong, QUIET_SECONDS)
                site.pair.wait_for_one_leader()
                print(f"round {number}: {fault}: directory {directory:.1f} s, usage {usage:.1f} s", flush=True)
                assert site.engines.failures == []
        site.pair.check()
        assert site.engines.requests > rounds
