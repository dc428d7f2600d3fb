"""What is between the documents of a prompt, in tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmcache_vllm.settings import PREFIX, Settings


def separator_tokens(
    settings: Settings, model_config: Any, open_tokenizer: Callable[[Any], Any] | None = None
) -> tuple[int, ...]:
    """Empty: prompts are not cut. Raises ValueError for a text that this engine cannot turn into tokens. `open_tokenizer`:
    vLLM's where it is None."""
    given = settings.blend_special_str
    if isinstance(given, tuple):
        return given
    if not given:
        return ()
    key = f"{PREFIX}blend_special_str"
    tokenizer = (open_tokenizer or _open_tokenizer)(model_config)
    if tokenizer is None:
        raise ValueError(
            f"'{key}' is the text {given!r}, and this engine has no tokenizer: give it as a list of token ids"
        )
    tokens = tuple(tokenizer.encode(given, add_special_tokens=False))
    if not tokens:
        raise ValueError(
            f"'{key}' is {given!r}, of which the tokenizer makes no tokens: give another text, or token ids"
        )
    return tokens


def _open_tokenizer(model_config: Any) -> Any:
    from vllm.tokenizers import cached_tokenizer_from_config  # as vLLM's front end has it

    return cached_tokenizer_from_config(model_config)
