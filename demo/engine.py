"""One real vLLM engine that takes commands on stdin and answers on stdout, one JSON object per line.

Runs in the engine environment; `engine_process.py` is the other end.  It lives until stdin ends, so that one engine can
be watched across a restart of its cache server.

A command is `{"prompts": [[token, ...], ...], "max_tokens": 8}`: all of its prompts are given to the engine at once. It may
have `kv_transfer_params` for them; an answer has those that the engine returned.
The answer is one line per prompt, in order; a failed request, or a bad command, is a line with `error`.  The very first
line says `{"ready": true, "seconds": ...}`, after one short request has warmed the engine up.  Whatever the engine and
its libraries print goes to stderr.

The time to first token is the engine's own: from the arrival of the request at the front end until the front end holds
its first token, with everything between (the cache look-up, the transfer, queueing).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams


class Connector(NamedTuple):
    """A connector by its name in the engine, and its settings: with a server, those that say where that is."""

    name: str
    host: str = ""
    port: str = ""
    settings: Mapping[str, Any] = {}


CONNECTORS = {
    "stock": Connector("LMCacheMPConnector", "lmcache.mp.host", "lmcache.mp.port"),
    "own": Connector("LMCacheNodeConnector", "lmcache.host", "lmcache.port"),
    "in-process": Connector("LMCacheNodeConnector", settings={"lmcache.in_process": True}),
}
LIKELIEST = 8
"""How many of the first token's log probabilities are reported, likeliest first."""

WARM_UP = json.dumps({"prompts": [list(range(3, 19))], "max_tokens": 2})
"""Too short to fill a chunk, so it leaves nothing in a cache."""


def private_stdout() -> IO[str]:
    """Keep the pipe to the parent for ourselves; everything else in this process and its children prints to stderr."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Drive one vLLM engine by JSON lines on stdin.")
    parser.add_argument("model", help="directory made by make_model.py")
    parser.add_argument("--port", type=int, help="engine port of the cache server; without it the engine has no cache")
    parser.add_argument("--host", default="tcp://127.0.0.1")
    parser.add_argument(
        "--connector", choices=tuple(CONNECTORS), default="stock", help="whose client of the cache server"
    )
    parser.add_argument("--extra", type=json.loads, default={}, help="more kv_connector_extra_config, as JSON")
    parser.add_argument("--load-failure", choices=("recompute", "fail"), default="recompute")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=8448, help="256 chunks of 32 tokens, and some to answer")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument(
        "--dtype", default="float32", help="bfloat16 rounds differently from batch to batch, and near-ties flip"
    )
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument(
        "--prefix-caching", action="store_true", help="the engine's own; without it every hit is the server's"
    )
    parser.add_argument("--kv-events", metavar="ENDPOINT", help="publish KV events there, such as tcp://127.0.0.1:5557")
    parser.add_argument("--worker-cls", default="auto", help="in place of the platform's own class of workers")
    parser.add_argument("--max-num-seqs", type=int, help="requests that run at once; the others wait")
    return parser.parse_args()


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options that the blocking and the asynchronous engine have in common."""
    from vllm.config import KVEventsConfig, KVTransferConfig

    transfer = None
    connector = CONNECTORS[args.connector]
    where = {connector.host: args.host, connector.port: args.port} if connector.host else connector.settings
    if args.port is not None or not connector.host:
        transfer = KVTransferConfig(
            kv_connector=connector.name,
            kv_role="kv_both",
            kv_load_failure_policy=args.load_failure,
            kv_connector_extra_config={**where, **args.extra},
        )
    return {
        "model": args.model,
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": args.dtype,
        "kv_cache_dtype": args.kv_cache_dtype,
        "enable_prefix_caching": args.prefix_caching,
        "disable_hybrid_kv_cache_manager": True,
        "disable_log_stats": False,  # the time to first token comes from the engine's statistics
        "block_size": args.block_size,
        "max_model_len": args.max_model_len,
        "hf_overrides": {"max_position_embeddings": args.max_model_len},
        "max_num_seqs": args.max_num_seqs,
        "tensor_parallel_size": args.tensor_parallel,
        "worker_cls": args.worker_cls,
        "kv_transfer_config": transfer,
        "kv_events_config": args.kv_events
        and KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=args.kv_events),
    }


def open_engine(options: dict[str, Any]) -> LLM:
    """Blocks until the engine can serve (some 20 s: most of it imports)."""
    from vllm import LLM

    return LLM(**options)


def sampling(max_tokens: int, kv_transfer_params: dict[str, Any] | None = None) -> SamplingParams:
    """Greedy, of exactly this length, and with the likeliest tokens reported."""
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0,
        detokenize=False,
        ignore_eos=True,
        logprobs=LIKELIEST,
        extra_args={"kv_transfer_params": kv_transfer_params} if kv_transfer_params else None,
    )


def describe(output: RequestOutput) -> dict[str, Any]:
    """What one finished request did, or why it failed."""
    completion = output.outputs[0]
    if completion.finish_reason not in ("length", "stop"):
        return {"error": f"the engine ended the request with {completion.finish_reason!r}"}
    first = completion.logprobs[0]
    likeliest = sorted(first.items(), key=lambda item: item[1].logprob, reverse=True)[:LIKELIEST]
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens or 0,
        "seconds_to_first_token": round(output.metrics.first_token_latency, 4),
        "output": list(completion.token_ids),
        "kv_transfer_params": output.kv_transfer_params,
        "first": [[token, round(entry.logprob, 4)] for token, entry in likeliest],
    }


def answer(engine: LLM, line: str) -> list[dict[str, Any]]:
    """Run one command; never raises for a bad command or a failed request."""
    count = 1
    try:
        command = json.loads(line)
        prompts = [{"prompt_token_ids": tokens} for tokens in command["prompts"]]
        count = len(prompts)
        parameters = sampling(command.get("max_tokens", 8), command.get("kv_transfer_params"))
        return [describe(output) for output in engine.generate(prompts, parameters, use_tqdm=False)]
    except Exception as error:  # noqa: BLE001  the parent waits for a line: it must get one whatever happened
        return [{"error": f"{type(error).__name__}: {error}"}] * count


def run(options: dict[str, Any], after_each: Callable[[LLM], None] | None = None) -> None:
    """An engine with these options, that answers a command for each line of stdin.  `after_each` is called when one was
    carried out, before it is answered."""
    pipe = private_stdout()
    begin = time.perf_counter()
    engine = open_engine(options)
    (warm_up,) = answer(engine, WARM_UP)
    if "error" in warm_up:
        sys.exit(f"the engine started, but its first request failed: {warm_up['error']}")
    print(json.dumps({"ready": True, "seconds": round(time.perf_counter() - begin, 1)}), file=pipe)
    for line in sys.stdin:
        results = answer(engine, line)
        if after_each is not None:
            after_each(engine)
        for result in results:
            print(json.dumps(result), file=pipe)


if __name__ == "__main__":
    run(engine_options(parse_arguments()))
