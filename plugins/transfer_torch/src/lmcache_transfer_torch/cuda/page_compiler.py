"""`python -m lmcache_transfer_torch.cuda.page_compiler`: reads one order from stdin, writes the compiled kernel to stdout.

The first line of the answer is a description in JSON; the image follows.  No GPU is needed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from lmcache_transfer_torch.cuda.page_shape import THREADS, TILE

_SIGNATURE = {"bases": "i64", "blocks": "i64", "objects": "i64", "object_words": "i64", "first_plane": "i32"}
_WARP = 32


def compile_page_kernel(shape: dict[str, int], gather: bool, capability: int) -> tuple[dict[str, Any], bytes]:
    # Only this process needs them.
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lmcache_transfer_torch.cuda.page_kernel import move_pages

    words = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}
    constants = {
        "WORD": words[shape["word_bytes"]],
        "GATHER": gather,
        "BLOCKS": shape["blocks"],
        "SLOTS": shape["slots"],
        "HEADS": shape["heads"],
        "HEAD_WORDS": shape["head_words"],
        "BLOCK_STRIDE": shape["block_stride"],
        "SLOT_STRIDE": shape["slot_stride"],
        "HEAD_STRIDE": shape["head_stride"],
        "TILE": TILE,
    }
    source = ASTSource(
        fn=move_pages,
        signature={name: _SIGNATURE.get(name, "constexpr") for name in move_pages.arg_names},
        constexprs={(move_pages.arg_names.index(name),): value for name, value in constants.items()},
    )
    target = GPUTarget("cuda", capability, _WARP)
    made = triton.compile(source, target=target, options={"num_warps": THREADS // _WARP})
    described = {
        "name": made.metadata.name,
        "threads": made.metadata.num_warps * _WARP,
        "shared": made.metadata.shared,
        "parameters": _parameters(made.asm["ptx"]),
    }
    return described, made.asm["cubin"]


def _parameters(assembly: str) -> list[str]:
    """What the kernel really takes: the compiler adds parameters of its own behind ours."""
    entry = re.search(r"\.entry\s+\w+\s*\((.*?)\)", assembly, re.DOTALL)
    return [f"i{width}" for width in re.findall(r"\.param\s+\.[ubs](32|64)", entry.group(1))] if entry else []


def main() -> None:
    # What libraries print must not come between the bytes of the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    order = json.load(sys.stdin)
    described, image = compile_page_kernel(order["shape"], order["gather"], order["capability"])
    with answer:
        answer.write(json.dumps(described).encode() + b"\n" + image)


if __name__ == "__main__":
    main()
