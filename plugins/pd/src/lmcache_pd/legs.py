"""The two requests that one request becomes: bodies, and the parameters of the hand-off, as vLLM's proxies send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PARAMETERS: Final = "kv_transfer_params"
HANDOFF_ID: Final = "lmcache.handoff_id"
HANDOFF_SERVER: Final = "lmcache.handoff_server"
OURS: Final = "lmcache.handoff"
"""In the parameters that prefill answers with: any decode engine may use them, late and twice."""
_FOR_MORE_TOKENS: Final = ("stream_options", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "best_of")

Body = dict[str, Any]


def has_one_prompt(body: Body) -> bool:
    """Whether what one prefill leaves is for one decode: not with several prompts or answers, since some connectors free it
    with the first that reads it."""
    prompt = body.get("prompt")
    is_batch = isinstance(prompt, list) and not all(type(token) is int for token in prompt)
    counts = [body.get(name) for name in ("n", "best_of")]
    return not is_batch and all(count in (None, 1) for count in counts) and not body.get("use_beam_search")


def prefill_body(body: Body, handoff_id: str) -> Body:
    """Computes the prompt and one token."""
    one = {name: value for name, value in body.items() if name not in _FOR_MORE_TOKENS}
    one |= {"stream": False, "max_tokens": 1}
    if "max_completion_tokens" in body:
        one["max_completion_tokens"] = 1
    asked = {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
        "remote_host": None, "remote_port": None, HANDOFF_ID: handoff_id,
    }  # fmt: skip
    return {**one, PARAMETERS: {**_of_client(body), **asked}}


def decode_body(body: Body, handoff: Mapping[str, Any] | None) -> Body:
    """The request with what prefill answered, or without."""
    parameters = {**_of_client(body), **(handoff or {})}
    rest = {name: value for name, value in body.items() if name != PARAMETERS}
    return {**rest, PARAMETERS: parameters} if parameters else rest


def concurrent_handoff(handoff_id: str, server: str) -> Mapping[str, Any]:
    """For a decode that is asked while prefill computes. `server`: that of the prefill engine; empty: it is not known."""
    return {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [],
        HANDOFF_ID: handoff_id, OURS: True, HANDOFF_SERVER: server,
    }  # fmt: skip


def handoff_of(answer: Any) -> Mapping[str, Any] | None:
    """What a prefill engine answered; None where it hands nothing over."""
    found = answer.get(PARAMETERS) if isinstance(answer, dict) else None
    return found if isinstance(found, dict) and found.get("do_remote_prefill") else None


def _of_client(body: Body) -> Mapping[str, Any]:
    """Parameters of the cache.  Those that name a host, an engine or a hand-off are the proxy's to set: an engine connects to
    what they name."""
    given = body.get(PARAMETERS)
    if not isinstance(given, dict):
        return {}
    return {name: value for name, value in given.items() if name.startswith("lmcache.") and not name.startswith(OURS)}
