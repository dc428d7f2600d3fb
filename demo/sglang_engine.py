"""One real SGLang engine that takes commands on stdin and answers on stdout, one JSON object per line, as `engine.py` does.

Runs in SGLang's environment; `sglang_process.py` is the other end.  Beside `prompts` and `max_tokens`, a command may have
`cache_salt` and `extra_key` for its prompts, and `abort_after`: the seconds after which they are aborted.  An aborted prompt is
answered with `error`.  `{"flush": true}` empties the engine's own cache, and is answered with `{"flushed": ...}`;
`{"update": MODEL}` gives it the weights of another model, and is answered with `{"updated": ...}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from demo.engine import LIKELIEST, WARM_UP, private_stdout

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine

Line = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Drive one SGLang engine by JSON lines on stdin.")
    parser.add_argument("model", help="directory made by make_model.py")
    parser.add_argument("--options", type=json.loads, default={}, help="more of the engine's arguments, as JSON")
    return parser.parse_args()


def open_engine(model: str, options: dict[str, Any]) -> Engine:
    """Blocks until the engine can serve.  Its scheduler is forked off this process, and so imports nothing once more: SGLang
    would spawn it."""
    multiprocessing.set_start_method("fork", force=True)
    vars(multiprocessing)["set_start_method"] = lambda *args, **kwargs: None

    from sglang.srt.entrypoints.engine import Engine

    return Engine(
        model_path=model,
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        sleep_on_idle=True,
        random_seed=1,
        log_level="info",
        mem_fraction_static=0.9,  # of the machine's: what others take during the start counts as the engine's
        **options,
    )


def sampling(max_tokens: int) -> dict[str, Any]:
    """Greedy, of exactly this length."""
    return {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}


async def ask(engine: Engine, tokens: list[int], command: Line) -> Line:
    """What one request did, or why it failed."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    request = GenerateReqInput(
        rid=uuid.uuid4().hex,
        input_ids=tokens,
        sampling_params=sampling(command.get("max_tokens", 8)),
        return_logprob=True,
        top_logprobs_num=LIKELIEST,
        stream=True,
        cache_salt=command.get("cache_salt"),
        extra_key=command.get("extra_key"),
    )
    begin, first, output = time.perf_counter(), 0.0, {}
    async for so_far in engine.tokenizer_manager.generate_request(request, None):
        first, output = first or time.perf_counter() - begin, so_far
    return describe(output, len(tokens), first)


def describe(output: Line, prompt_tokens: int, seconds_to_first_token: float) -> Line:
    meta = output["meta_info"]
    if meta["finish_reason"]["type"] not in ("length", "stop"):
        return {"error": f"the engine ended the request with {meta['finish_reason']}"}
    return {
        "prompt_tokens": prompt_tokens,
        "cached_tokens": meta["cached_tokens"],
        "seconds_to_first_token": round(seconds_to_first_token, 4),
        "output": output["output_ids"],
        "first": [[token, round(value, 4)] for value, token, _ in meta["output_top_logprobs"][0]],
    }


async def ask_all(engine: Engine, command: Line) -> list[Line]:
    """All prompts of a command at once."""
    asked = [asyncio.ensure_future(ask(engine, tokens, command)) for tokens in command["prompts"]]
    if "abort_after" in command:
        await asyncio.sleep(command["abort_after"])
        engine.tokenizer_manager.abort_request(abort_all=True)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [
        {"error": f"{type(each).__name__}: {each}"} if isinstance(each, BaseException) else each for each in answers
    ]


def answer(engine: Engine, line: str) -> list[Line]:
    """Run one command; never raises for a bad command or a failed request."""
    count = 1
    try:
        command = json.loads(line)
        if command.get("flush"):
            return [{"flushed": engine.flush_cache().success}]
        if "update" in command:
            updated, said, _ = engine.update_weights_from_disk(command["update"])
            return [{"updated": updated, "said": said}]
        count = len(command["prompts"])
        answers: list[Line] = engine.loop.run_until_complete(ask_all(engine, command))
        return answers
    except Exception as error:  # noqa: BLE001  the parent waits for a line: it must get one whatever happened
        return [{"error": f"{type(error).__name__}: {error}"}] * count


def main() -> None:
    args = parse_arguments()
    pipe = private_stdout()
    begin = time.perf_counter()
    engine = open_engine(args.model, args.options)
    (warm_up,) = answer(engine, WARM_UP)
    if "error" in warm_up:
        sys.exit(f"the engine started, but its first request failed: {warm_up['error']}")
    print(json.dumps({"ready": True, "seconds": round(time.perf_counter() - begin, 1)}), file=pipe)
    for line in sys.stdin:
        for result in answer(engine, line):
            print(json.dumps(result), file=pipe)
    engine.shutdown()


if __name__ == "__main__":
    main()
