"""What the algorithms of one policy share: columns, and the lists that are kept in some of them."""

from __future__ import annotations

from lmcache_policies.structures.columns import Columns
from lmcache_policies.structures.slot_lists import SlotLists


class SlotTable:
    """Everything that is known of slots."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.lists = SlotLists(self.columns)
