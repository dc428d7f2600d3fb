"""Prefill on one engine and decode on another behind `lmcache pd-proxy`: this cache's connector beside NixlConnector.

    .venv/bin/python -m benchmarks.handoff [--prompts 100] [--rounds 2] [--only ours,nixl] [--nixl-path FOLDER]

A single engine answers all prompts first; every other answer must have its tokens.  Then each way has two engines and a
proxy of its own, one way after the other, in every round: `ours` with two servers and a coordinator, asked in the
proxy's two modes, and `nixl` with vLLM's NixlConnector, sequentially.  Times are the client's, of a streamed answer.
What decode computed is the engine's own count.  Blocks are those of the prefill engine, looked at from the end of an
answer on.  A second list follows: a hand-off that is used twice, comes late, is forged, belongs to another prompt, and
whose prefill engine has died; each says how many answers were right, and how much decode computed.

NixlConnector needs nixl, from a folder that `pip install --target FOLDER --no-deps nixl nixl-cu12` has filled.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from demo.child_process import ChildError, ChildProcess
from demo.engine_process import engine_environment
from demo.environment import quiet_environment
from demo.prompts import random_prompt
from demo.server_process import LMCACHE, ServerProcess
from lmcache_devkit import free_port
from tests.engine.http_engine import BLOCK_TOKENS, START_SECONDS, STEP_TOKENS, Answered, HttpEngine, ask, request

TOKENS: Final = (300, 6_000)
CHUNK_TOKENS: Final = 256
FREE_SECONDS: Final = 2.0
HANDOFF_SECONDS: Final = 10
"""After which a hand-off is late: ours is forgotten, and NixlConnector frees the blocks."""
GIVE: Final = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


class Way:
    """Two engines, and what they need."""

    def __init__(self, name: str, folder: Path, nixl_path: str, stack: ExitStack) -> None:
        self.name = name
        self._servers: list[ServerProcess] = []
        if name == "ours":
            self.engines = self._ours(folder, stack)
        else:
            self.engines = self._nixl(folder, nixl_path)
        for engine in self.engines:
            engine.start(stack)
        self._folder, self._stack = folder, stack
        self.proxies = {
            mode: self._proxy(mode) for mode in (("sequential", "concurrent") if name == "ours" else ("sequential",))
        }

    def _ours(self, folder: Path, stack: ExitStack) -> list[HttpEngine]:
        url = f"http://127.0.0.1:{free_port()}"
        coordinator = ChildProcess(
            "coordinator",
            [str(LMCACHE), "coordinator", "--port", url.rpartition(":")[2], "--state", str(folder / "state.db")],
            folder / "coordinator.log",
            quiet_environment(),
        )
        coordinator.start()
        stack.callback(coordinator.kill)
        engines = []
        for role, name in (("producer", "prefill"), ("receiver", "decode")):
            options = ["--instance-id", name, "--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS)]
            options += ["--coordinator-url", url, "--coordinator-heartbeat-interval", "0.5"]
            options += [
                "--p2p-advertise-url",
                f"tcp://127.0.0.1:{free_port()}",
                "--pd-handoff-seconds",
                str(HANDOFF_SECONDS),
            ]
            server = stack.enter_context(ServerProcess(options, folder / f"{name}-server.log"))
            self._servers.append(server)
            extra = {"lmcache.host": "tcp://127.0.0.1", "lmcache.port": server.port, "lmcache.pd_role": role}
            transfer = {
                "kv_connector": "LMCacheNodeConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": extra | {"lmcache.lookup_timeout_ms": 20_000},
            }  # fmt: skip
            engines.append(HttpEngine(name, folder, transfer, {}))
        return engines

    def _nixl(self, folder: Path, nixl_path: str) -> list[HttpEngine]:
        transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
        return [
            HttpEngine(
                name, folder, transfer,
                {
                    "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "UCX_MODULES": "^ib", "UCX_NET_DEVICES": "lo",
                    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": str(HANDOFF_SECONDS),
                    "PYTHONPATH": os.pathsep.join((engine_environment(1)["PYTHONPATH"], nixl_path)),
                },
            )
            for name in ("nixl-prefill", "nixl-decode")
        ]  # fmt: skip

    def _proxy(self, mode: str) -> int:
        port = free_port()
        prefill, decode = self.engines
        command = [str(LMCACHE), "pd-proxy", "--prefill", prefill.url, "--decode", decode.url, "--port", str(port)]
        proxy = ChildProcess("proxy", [*command, "--mode", mode], self._folder / f"{mode}.log", quiet_environment())
        proxy.start()
        self._stack.callback(proxy.kill)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                if request(port, "GET", "/health")[0] == 200:
                    return port
            except OSError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def clear(self) -> None:
        """What an earlier mode has left in the servers."""
        for server in self._servers:
            code, body = request(server.http_port, "POST", "/cache/clear")
            if code != 200:
                raise ChildError(f"a server was not cleared: {code} {body[:300]!r}")

    def free_after(self) -> float:
        """Seconds until the prefill engine has no block in use."""
        start = time.monotonic()
        while self.engines[0].used_blocks() > 0 and time.monotonic() - start < FREE_SECONDS:
            time.sleep(0.01)
        return time.monotonic() - start


def prompts(count: int) -> list[list[int]]:
    lengths = random.Random(20)
    return [random_prompt(7_000 + number, lengths.randint(*TOKENS)) for number in range(count)]


def measure(way: Way, asked: Sequence[Sequence[int]], truth: Sequence[Answered]) -> None:
    for mode, port in way.proxies.items():
        answers, free, computed = [], [], []
        decode = way.engines[1]
        way.clear()
        for prompt in asked:
            before = decode.computed_tokens()
            try:
                answers.append(ask(port, prompt))
            except (ChildError, OSError) as error:
                print(f"{way.name} {mode}: {len(prompt)} tokens: {error}", flush=True)
                answers.append(Answered((), 0.0, {}))
            computed.append(decode.computed_tokens() - before)
            free.append(way.free_after())
        right = sum(answer.tokens == true.tokens for answer, true in zip(answers, truth, strict=True))
        long = [
            answer.first_seconds
            for answer, prompt in zip(answers, asked, strict=True)
            if len(prompt) >= 4 * STEP_TOKENS / 2
        ]
        firsts = [answer.first_seconds for answer in answers]
        print(
            f"{way.name:5} {mode:11} right {right} of {len(asked)}; decode computed median {statistics.median(computed):.0f}, "
            f"most {max(computed)}, more than a block {sum(each > BLOCK_TOKENS for each in computed)}; "
            f"first token median {statistics.median(firsts) * 1e3:.0f} ms, of {len(long)} long prompts "
            f"{statistics.median(long) * 1e3 if long else 0:.0f} ms; "
            f"prefill's blocks free after {statistics.median(free) * 1e3:.0f} ms, at most {max(free) * 1e3:.0f} ms",
            flush=True,
        )


def misuse(way: Way, truth: Mapping[str, Sequence[Answered]], asked: Sequence[Sequence[int]]) -> None:
    """Each case with every prompt; the last one kills the prefill engine."""
    prefill, decode = way.engines
    others: list[Sequence[int]] = [random_prompt(8_000 + number, len(prompt)) for number, prompt in enumerate(asked)]

    def given(prompt: Sequence[int]) -> Mapping[str, Any]:
        return ask(prefill.port, prompt, GIVE, tokens=1).params

    def case(name: str, rows: Sequence[tuple[Sequence[int], Mapping[str, Any]]], true: Sequence[Answered]) -> None:
        right, failed, computed = 0, 0, []
        for (prompt, params), expected in zip(rows, true, strict=True):
            before = decode.computed_tokens()
            try:
                answer = ask(decode.port, prompt, params)
            except (ChildError, OSError):
                failed += 1
                continue
            right += answer.tokens == expected.tokens
            computed.append(decode.computed_tokens() - before)
        share = statistics.median(computed) if computed else 0
        wrong = len(rows) - right - failed
        print(
            f"{way.name:5} {name:28} right {right}, wrong {wrong}, failed {failed}; decode computed median {share:.0f}",
            flush=True,
        )

    handed = [given(prompt) for prompt in asked]
    case("used", list(zip(asked, handed, strict=True)), truth["asked"])
    for prompt in others:
        ask(prefill.port, prompt, tokens=1)  # its blocks are used again
    case("used a second time", list(zip(asked, handed, strict=True)), truth["asked"])
    handed = [given(prompt) for prompt in others]
    time.sleep(3 * HANDOFF_SECONDS)
    for prompt in asked:
        ask(prefill.port, prompt, tokens=1)
    case("late", list(zip(others, handed, strict=True)), truth["others"])
    handed = [given(prompt) for prompt in asked]
    case("of another prompt", list(zip(others, handed, strict=True)), truth["others"])
    forged = [{**each, "remote_request_id": "forged", "lmcache.handoff_id": "forged"} for each in handed]
    case("forged", list(zip(asked, forged, strict=True)), truth["asked"])
    handed = [given(prompt) for prompt in others]
    prefill.kill()
    case("prefill died", list(zip(others, handed, strict=True)), truth["others"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--misused", type=int, default=6, help="prompts of the second list; 0: none")
    parser.add_argument("--only", default="ours,nixl")
    parser.add_argument("--nixl-path", default="", metavar="FOLDER", help="where vLLM finds nixl")
    args = parser.parse_args()
    asked = prompts(args.prompts)
    misused = asked[: args.misused]
    others = [random_prompt(8_000 + number, len(prompt)) for number, prompt in enumerate(misused)]
    print(machine.description())
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        single = HttpEngine("single", Path(name), None, {})
        single.start(stack)
        truth = [ask(single.port, prompt) for prompt in asked]
        true = {"asked": truth[: args.misused], "others": [ask(single.port, prompt) for prompt in others]}
        firsts = statistics.median(answer.first_seconds for answer in truth)
        print(f"a single engine: first token median {firsts * 1e3:.0f} ms", flush=True)
    for number in range(args.rounds):
        for way_name in args.only.split(","):
            try:
                with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
                    way = Way(way_name, Path(name), args.nixl_path, stack)
                    measure(way, asked, truth)
                    if misused and number == args.rounds - 1:
                        misuse(way, true, misused)
            except ChildError as error:
                print(f"FAILED {way_name}: {error}", flush=True)


if __name__ == "__main__":
    main()
