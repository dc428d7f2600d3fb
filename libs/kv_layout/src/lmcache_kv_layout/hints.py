"""What engines say about their tensors that shapes alone do not."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_kv_layout.errors import LayoutError

HEAD_MAJOR = {"NHD": False, "BLNHC": False, "HND": True, "BLHNC": True}
"""Names of `kv_layout`, and whether heads come before the slots of a block.  `BL...`: blocks outermost, all layers in each."""

KV_LIST_LAYOUTS = ("k_v", "unified")


@dataclass(frozen=True, slots=True)
class LayoutHints:
    """Hints of a registration; each may be missing.

    `kv_layout`: order of heads and slots in a page.  `num_kv_heads`, `tokens_per_block`, `head_dim`: what folded dimensions
    are made of.  `kv_list_layout`: `k_v`, a flat list of all K and then all V tensors; `unified`, each tensor by itself.
    """

    kv_layout: str | None = None
    num_kv_heads: int | None = None
    tokens_per_block: int | None = None
    kv_list_layout: str | None = None
    head_dim: int | None = None

    def __post_init__(self) -> None:
        if self.kv_layout is not None and self.kv_layout not in HEAD_MAJOR:
            raise LayoutError(f"kv_layout '{self.kv_layout}' is unknown; known: {', '.join(HEAD_MAJOR)}")
        if self.kv_list_layout is not None and self.kv_list_layout not in KV_LIST_LAYOUTS:
            raise LayoutError(f"kv_list_layout '{self.kv_list_layout}' is unknown; known: {', '.join(KV_LIST_LAYOUTS)}")
        for name in ("num_kv_heads", "tokens_per_block", "head_dim"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**31:
                raise LayoutError(f"the hint {name} is {value}; it must be 1 or more")

    def head_major(self, default: bool) -> bool:
        """Whether heads come before slots, `default` where the engine does not say."""
        return default if self.kv_layout is None else HEAD_MAJOR[self.kv_layout]
