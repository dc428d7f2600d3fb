"""The page about formats has all of them, as they are read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from lmcache_kv_layout import GROUPS_MAX, LAYERS_MAX, EngineKVFormat
from lmcache_kv_layout.formats import DIMENSIONS
from lmcache_kv_layout.limits import PLANES_MAX, RANK_MAX

PAGE = (Path(__file__).parents[3] / "docs/engines/kv-layouts.md").read_text()
WORDS = {"NB": "b", "NL": "l", "2": "k", "BS": "s", "NH": "h", "HS": "d", "CS": "d", "132": "d", "NB*BS": "p", "1": "1"}


def test_every_format_is_in_the_table_with_its_dimensions() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| `\[(.+?)\]` \|", PAGE, re.MULTILINE)
    assert [(int(number), name) for number, name, _ in rows] == [
        (format.value, format.name) for format in EngineKVFormat
    ]
    for number, _, dims in rows:
        letters = "".join(WORDS[dim] for dim in dims.split(", "))
        if number in ("10", "11"):
            letters = letters.replace("k", "t")
        assert letters == DIMENSIONS[EngineKVFormat(int(number))]


def test_limits_are_those_of_the_page() -> None:
    limits = f"more than {LAYERS_MAX:,} layers, {GROUPS_MAX} groups, {PLANES_MAX} planes or {RANK_MAX} dimensions"
    assert limits in " ".join(PAGE.split())


def test_the_example_of_the_readme_runs() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    pages = np.zeros(1000 * 32768 * 2, np.uint8)
    pages[-16 * 65536 :] = 7
    kept = np.zeros(32 << 20, np.uint8)
    names = {
        "addresses": [pages.ctypes.data] * 32,
        "block_ids": list(range(984, 1000)),
        "object_address": kept.ctypes.data,
    }
    exec(example, names)
    assert str(names["layout"]) == "bfloat16[32, 256, 2048] in blocks of 16"
    assert (kept == 7).all()
