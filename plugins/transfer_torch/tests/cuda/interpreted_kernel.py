"""A child process with triton: reads cases from stdin, runs the page kernel in triton's interpreter, writes what it made.

Each case is a line of JSON with a shape, planes, block ids, and the random seed of the pages; the answer is a line with the
hexadecimal bytes of the gathered objects, and of the pages into which they were scattered.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl

from lmcache_transfer_torch.cuda.page_kernel import move_pages
from lmcache_transfer_torch.cuda.page_shape import TILE

WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


def run(case: dict[str, Any]) -> dict[str, str]:
    shape, count, planes = case["shape"], case["objects"], case["planes"]
    pages = torch.frombuffer(bytearray(random.Random(case["seed"]).randbytes(case["storage_bytes"])), dtype=torch.uint8)
    other = torch.zeros_like(pages)
    word = shape["word_bytes"]
    page_words = shape["slots"] * shape["heads"] * shape["head_words"]
    object_words = planes * shape["blocks"] * page_words
    objects = torch.full((count * object_words * word,), 0xAA, dtype=torch.uint8)
    blocks = torch.tensor(case["blocks"], dtype=torch.int64)
    grid = (-(-page_words // TILE), count * shape["blocks"], planes)
    for gather, storage in ((True, pages), (False, other)):
        bases = torch.tensor([storage.data_ptr() + offset for offset in case["bases"]], dtype=torch.int64)
        move_pages[grid](
            bases.data_ptr(),
            blocks.data_ptr(),
            objects.data_ptr(),
            object_words,
            0,
            WORD=WORDS[word],
            GATHER=gather,
            BLOCKS=shape["blocks"],
            SLOTS=shape["slots"],
            HEADS=shape["heads"],
            HEAD_WORDS=shape["head_words"],
            BLOCK_STRIDE=shape["block_stride"],
            SLOT_STRIDE=shape["slot_stride"],
            HEAD_STRIDE=shape["head_stride"],
            TILE=TILE,
        )
    return {"objects": objects.numpy().tobytes().hex(), "pages": other.numpy().tobytes().hex()}


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
