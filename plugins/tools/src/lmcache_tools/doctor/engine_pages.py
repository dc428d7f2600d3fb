"""Is a chunk whole pages of the engine?"""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult

_PROBE = "engine's pages"


def engine_pages(context: CheckContext) -> Iterator[ProbeResult]:
    page, chunk = context.page_tokens, context.settings.chunk_size
    if page is None:
        return
    facts = {"page_tokens": page, "chunk_tokens": chunk}
    if chunk % page == 0:
        yield ProbeResult(_PROBE, Level.OK, f"{chunk // page} of {page} tokens are a chunk of {chunk}", facts=facts)
        return
    yield ProbeResult(
        _PROBE,
        Level.FAIL,
        f"a chunk of {chunk} tokens is not a multiple of a page of {page}: SGLang with --enable-lmcache does not start",
        "choose a --chunk-size that is, or a --page-size of SGLang that divides it; lmcache-sglang takes any from 16 on",
        f"--chunk-size {-(-chunk // page) * page}",
        facts,
    )
