"""Documents between separators in a real engine: each is found by itself, after a restart too, and taints nothing exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from tests.engine.comparison import assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import SPINNING_WORKERS
from tests.engine.test_blend import (
    ALL_COMPUTED,
    BLENDS,
    CHUNK_TOKENS,
    DOCUMENTS,
    NONE_COMPUTED,
    STORED_SECONDS,
    BlendSite,
    counts,
)

pytestmark = [pytest.mark.engine, pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]

RANKS = 2
HASH = 31_500
"""The token of "#" alone, which no random prompt has."""
TEXT, SEPARATOR = " # # ", [HASH, HASH]
ONE, TWO, THREE = (random_prompt(1900 + tokens, tokens) for tokens in (100, 130, 45))
"""Alone they have 2, 3 and 1 chunks; none ends where a chunk does."""
ALONE_CHUNKS = 6
EARLIER_CHUNKS = sum(len(document) // CHUNK_TOKENS + 1 for document in DOCUMENTS)
"""The site has asked for these, each with a token more."""
HEAD_CHUNKS = 1
"""Of what is before the first separator of a prompt."""
BEHIND = random_prompt(1990, 90)
"""It is never sent alone."""


def write_tokenizer(folder: Path) -> Path:
    """Words between white space are tokens, and each text begins with a token of its own."""
    folder.mkdir()
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    whole = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text],
            "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<s>": 1, "#": HASH}, "unk_token": "<unk>"},
    }
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>"}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def prompt(seed: int, *documents: list[int]) -> list[int]:
    """Behind tokens that no other prompt has, so that no document is where a chunk or a block begins; and a question."""
    found = random_prompt(seed, 5 + seed % 7) + SEPARATOR
    for document in documents:
        found = found + document + SEPARATOR
    return found + random_prompt(seed + 5000, 24)


class Disk:
    """What is expected there: no other chunk is ever stored."""

    def __init__(self, folder: Path) -> None:
        self.l2 = L2Folder(folder)
        self.l2.path.mkdir()
        self._objects = 0

    def begin(self) -> None:
        self._objects = len(self.l2.objects())

    def await_more(self, chunks: int) -> None:
        """Of each rank."""
        self._objects += chunks * RANKS
        self.l2.wait_for_objects(self._objects, STORED_SECONDS)

    def assert_nothing_else(self) -> None:
        assert len(self.l2.objects()) == self._objects


def test_documents_outlive_the_server_and_fit_anywhere_in_a_prompt(
    engine_environment: None, reference: Reference, tmp_path: Path
) -> None:
    """Two ranks. The tokens of the separator are those of its text in the model's tokenizer."""
    disk = Disk(tmp_path / "l2")
    extra: dict[str, Any] = {**BLENDS, **SPINNING_WORKERS, "lmcache.blend_special_str": TEXT}
    tokenizer = {"skip_tokenizer_init": False, "tokenizer": str(write_tokenizer(tmp_path / "tokenizer"))}
    site = BlendSite(
        tmp_path, l2=disk.l2, extra=extra, one_process=False, tensor_parallel=RANKS, control={"vllm": tokenizer}
    )
    try:
        disk.await_more(EARLIER_CHUNKS)
        for document in (ONE, TWO, THREE):
            site.ask([*document, *SEPARATOR, 5], {})
        disk.await_more(ALONE_CHUNKS)
        site.server.wait_written(STORED_SECONDS)
        site.server.stop()
        site.server.start()
        disk.begin()
        site.engine.ask_until_cached(random_prompt(1999, CHUNK_TOKENS + 1), timeout_seconds=STORED_SECONDS)
        disk.await_more(2)

        asked, tokens = prompt(1, THREE, TWO, ONE), len(ONE) + len(TWO) + len(THREE)
        answer = site.ask(asked, ALL_COMPUTED)
        assert counts(answer) == (0, tokens)
        assert_right([answer], reference.answers([asked]))
        disk.await_more(len(asked) // CHUNK_TOKENS + HEAD_CHUNKS)

        # K that was not moved rightly would deviate at the first layer, and be computed.
        asked = prompt(2, TWO, THREE, ONE)
        assert counts(site.ask(asked, NONE_COMPUTED)) == (tokens, 0)
        disk.await_more(HEAD_CHUNKS)
        assert_not_taken(site, reference, asked)
        disk.await_more(len(asked) // CHUNK_TOKENS)

        # A document that came behind another, and begins a prompt now.
        assert counts(site.ask(prompt(3, TWO, BEHIND), NONE_COMPUTED)) == (len(TWO), 0)
        disk.await_more(HEAD_CHUNKS + 2)
        asked = [*BEHIND, *SEPARATOR, *ONE, *SEPARATOR, *random_prompt(4, 70)]
        assert counts(site.ask(asked, NONE_COMPUTED)) == (len(BEHIND) + len(ONE), 0)
        assert_not_taken(site, reference, asked)
        disk.await_more(len(asked) // CHUNK_TOKENS)
        disk.assert_nothing_else()
    finally:
        site.close()


def assert_not_taken(site: BlendSite, reference: Reference, asked: list[int]) -> None:
    """A request that does not blend computes this prompt, all of which was approximate."""
    exact = site.ask(asked, {"lmcache.blend": False})
    assert_computed([exact])
    assert_right([exact], reference.answers([asked]))
