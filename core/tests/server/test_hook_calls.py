"""No hook is called on a request's path: a whole server, with plugins that would be heard, and a thousand requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

REQUESTS = 1000
PLUGIN = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_subscribers():
        return [Offer("heard", "listens", "heard_plugin:open_it", default=True)]

    def open_it(settings):
        from lmcache_core import Event, Subscriber

        class Listener(Subscriber):
            def subscriptions(self):
                return {Event: lambda event: None}

        return Listener()

    @hookimpl
    def lmcache_server_started(server):
        pass

    @hookimpl
    def lmcache_server_stopping(server):
        pass
    """


class TracedServer:
    """A server whose hook calls are lines of its log."""

    def __init__(self, endpoint: str, log: Path) -> None:
        self.endpoint = endpoint
        self._log = log

    def hook_calls(self) -> Counter[str]:
        """How often each hook was called so far, by plugin and hook."""
        lines = self._log.read_text().splitlines()
        calls = [line.split() for line in lines if line.startswith("lmcache: hook call ")]
        return Counter(f"{plugin} {hook}" for _, _, _, plugin, hook, *_ in calls)


@contextmanager
def traced_server(folder: Path) -> Iterator[tuple[TracedServer, subprocess.Popen[bytes]]]:
    (folder / "heard_plugin.py").write_text(dedent(PLUGIN))
    about = folder / "heard-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: heard\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lmcache.plugins.v1]\nheard = heard_plugin\n")
    port, log = free_port(), folder / "log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")}
    environment = {**kept, "PYTHONPATH": str(folder), "LMCACHE_TRACE_HOOKS": "1"}
    flags = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--chunk-size": "16",
        # small, so that eviction runs, and with a backend, so that stores and prefetches do
        "--l1-size-gb": "0.002",
        "--l2-adapter": json.dumps({"type": "memory"}),
    }
    command = [
        sys.executable,
        "-m",
        "lmcache_core",
        "server",
        "--no-http",
        *(word for flag in flags.items() for word in flag),
    ]
    with log.open("wb") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield TracedServer(f"tcp://127.0.0.1:{port}", log), child
    finally:
        child.kill()
        child.wait()


def wait_until_started(server: TracedServer) -> None:
    end = time.monotonic() + 30
    while not server.hook_calls()["plugin=heard hook=lmcache_server_started"]:
        assert time.monotonic() < end, "the server did not come up"
        time.sleep(0.05)


def test_a_thousand_requests_call_no_hook(tmp_path: Path) -> None:
    with traced_server(tmp_path) as (server, child):
        wait_until_started(server)
        with FakeEngine(server.endpoint) as engine:
            before = server.hook_calls()
            requests = hits = 0
            while requests < REQUESTS:
                first = requests % 90
                tokens = list(range(first, first + 64))
                hits += engine.lookup(tokens, f"r{requests}")
                engine.retrieve(tokens, f"r{requests}")
                engine.store(tokens, f"r{requests}")
                engine.end(f"r{requests}")
                requests += 6  # a lookup, an end of session, and the two halves of a retrieve and of a store
            assert hits > 0
            assert server.hook_calls() == before
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        after = server.hook_calls()
    # and what there is to be counted was counted
    assert before["plugin=builtin hook=lmcache_l2_adapters"] == 1
    assert before["plugin=heard hook=lmcache_subscribers"] == 1
    assert before["plugin=heard hook=lmcache_server_started"] == 1
    assert after - before == Counter({"plugin=heard hook=lmcache_server_stopping": 1})
