"""`vllm serve`: one engine behind its HTTP API, and requests of tokens."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from demo.child_process import ChildError, ChildProcess
from demo.engine_process import ENGINE_PYTHON, MODEL, engine_environment, preloaded
from demo.shared_memory import shared_by_group
from lmcache_devkit import free_port

STEP_TOKENS: Final = 2048
"""That an engine computes at once."""
BLOCK_TOKENS: Final = 32
ANSWER_TOKENS: Final = 8
START_SECONDS: Final = 300.0
ANSWER_SECONDS: Final = 120.0


class Answered(NamedTuple):
    tokens: tuple[int, ...]
    first_seconds: float
    params: Mapping[str, Any]


class HttpEngine:
    """`vllm serve` on a free port."""

    def __init__(
        self, name: str, folder: Path, transfer: Mapping[str, Any] | None, environment: Mapping[str, str]
    ) -> None:
        self.name, self.port = name, free_port()
        command = [str(ENGINE_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL)]
        command += [
            "--served-model-name",
            "m",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--skip-tokenizer-init",
        ]
        command += ["--dtype", "float32", "--block-size", str(BLOCK_TOKENS), "--no-enable-prefix-caching"]
        command += ["--max-model-len", "8448", "--enforce-eager"]
        command += ["--max-num-batched-tokens", str(STEP_TOKENS)]
        command += ["--hf-overrides", json.dumps({"max_position_embeddings": 8448})]
        if transfer:
            command += ["--kv-transfer-config", json.dumps(transfer), "--disable-hybrid-kv-cache-manager"]
        own = engine_environment(1) | dict(environment)
        self._child = ChildProcess(f"vLLM {name}", command, folder / f"{name}.log", own, preloaded(ENGINE_PYTHON))
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def launch(self, stack: ExitStack) -> None:
        """Returns at once; what is left of it when the stack ends is killed."""
        self._child.start()
        stack.callback(self.kill)

    def wait_ready(self) -> None:
        """Raises ChildError."""
        until = time.monotonic() + START_SECONDS
        while not is_up(self.port):
            if self._child.ended or time.monotonic() > until:
                raise self._child.error("does not answer")
            time.sleep(0.2)

    def start(self, stack: ExitStack) -> None:
        self.launch(stack)
        self.wait_ready()

    def kill(self) -> None:
        """With the memory that its processes share."""
        shared = shared_by_group(self._child.pid) if self._child.running else set()
        self._child.kill()
        for path in shared:
            path.unlink(missing_ok=True)

    def used_blocks(self) -> float:
        """Share of its KV memory."""
        return self._metric("vllm:kv_cache_usage_perc")

    def computed_tokens(self) -> int:
        """Of all prompts so far, by this engine itself.  (The usage in an answer behind a proxy is that of the engine that
        prefilled.)"""
        return int(self._metric("vllm:prompt_tokens_by_source_total", 'source="local_compute"'))

    def _metric(self, name: str, label: str = "") -> float:
        for line in request(self.port, "GET", "/metrics")[1].decode().splitlines():
            if line.startswith(name) and label in line:
                return float(line.rpartition(" ")[2])
        raise ChildError(f"vLLM has no metric {name}")


def is_up(port: int) -> bool:
    try:
        return request(port, "GET", "/health", seconds=2.0)[0] == 200
    except OSError:
        return False


def request(port: int, method: str, path: str, body: Any = None, seconds: float = ANSWER_SECONDS) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ask(
    port: int, prompt: Sequence[int], params: Mapping[str, Any] | None = None, tokens: int = ANSWER_TOKENS
) -> Answered:
    """Raises ChildError for an answer that is none."""
    body: dict[str, Any] = {
        "model": "m", "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "stream": params is None, "detokenize": False,
    }  # fmt: skip
    if params is not None:
        body["kv_transfer_params"] = dict(params)
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ChildError(f"{answer.status}: {answer.read()[:300]!r}")
        first, parts, is_whole = 0.0, [], params is not None
        if params is not None:
            parts = [json.loads(answer.read())]
            first = time.monotonic() - start
        else:
            for line in answer:
                is_whole = is_whole or line.startswith(b"data: [DONE]")
                if line.startswith(b"data: {"):
                    first = first or time.monotonic() - start
                    parts.append(json.loads(line[6:]))
    except http.client.HTTPException as error:
        raise ChildError(f"the answer cannot be read: {error!r}") from None
    finally:
        connection.close()
    if not is_whole:  # of a connection that ends inside of an answer, an iteration says nothing
        raise ChildError(f"the answer was cut off after {len(parts)} parts")
    if any("error" in part for part in parts):
        raise ChildError(str(parts[-1])[:300])
    ids = tuple(token for part in parts for choice in part["choices"] for token in choice.get("token_ids") or ())
    return Answered(ids, first, parts[-1].get("kv_transfer_params") or {})
