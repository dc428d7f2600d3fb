"""One real vLLM engine with many clients at once, who may leave before they have their answer.

Runs in the engine environment; `concurrent_engine.py` is the other end.  Commands and answers are JSON lines, as with
`demo/engine.py`, but a command is one request, and answers come when they are ready:

    {"id": 7, "prompt": [token, ...], "max_tokens": 8, "leave_after_seconds": null, "leave_after_tokens": null}

The line that ends it has its `id`, and the answer, or `left`, or `error`.  A client that leaves cancels its request, as
the engine's own HTTP front end does when a connection is closed.  When stdin ends, all leave.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import aclosing
from typing import IO, TYPE_CHECKING, Any

from demo.engine import WARM_UP, describe, engine_options, parse_arguments, private_stdout, sampling

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

LINE_BYTES_MAX = 1 << 22


async def run(engine: AsyncLLM, request: dict[str, Any]) -> dict[str, Any]:
    """One request to its end, or until its client has seen as many tokens as it wanted."""
    enough = request.get("leave_after_tokens")
    prompt = {"prompt_token_ids": request["prompt"]}
    async with aclosing(engine.generate(prompt, sampling(request["max_tokens"]), str(request["id"]))) as outputs:
        async for output in outputs:
            if output.finished:
                return describe(output)
            if enough is not None and len(output.outputs[0].token_ids) >= enough:
                return {"left": True}
    return {"error": "the engine ended the request without a last output"}


async def serve(engine: AsyncLLM, request: dict[str, Any], pipe: IO[str]) -> None:
    """Exactly one line for the request, whatever happens to it."""
    try:
        async with asyncio.timeout(request.get("leave_after_seconds")):
            result = await run(engine, request)
    except TimeoutError:
        result = {"left": True}
    except Exception as error:  # noqa: BLE001  the parent waits for a line: it must get one whatever happened
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps({"id": request["id"], **result}), file=pipe)


async def requests_of_parent() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    pipe = private_stdout()
    begin = time.perf_counter()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_options(parse_arguments())))
    (prompt,), max_tokens = (warm_up := json.loads(WARM_UP))["prompts"], warm_up["max_tokens"]
    await run(engine, {"id": "warm-up", "prompt": prompt, "max_tokens": max_tokens})
    print(json.dumps({"ready": True, "seconds": round(time.perf_counter() - begin, 1)}), file=pipe)
    clients: set[asyncio.Task[None]] = set()
    async for line in await requests_of_parent():
        client = asyncio.create_task(serve(engine, json.loads(line), pipe))
        clients.add(client)
        client.add_done_callback(clients.discard)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
