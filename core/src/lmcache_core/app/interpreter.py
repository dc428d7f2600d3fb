"""How Python runs in a server: whose turn it is, and when garbage is looked for."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0002
"""How long a thread may compute while another one waits to: a request must not wait for the router through several turns
of whoever hashes or copies.  Beside one busy thread, a thread that wakes up begins after 11 ms (median) with Python's own
5 ms, after 1.2 ms with 1 ms, 0.7 ms with 0.5 ms, and 0.1 ms with this; the busy one gets as much done, down to 0.05 ms."""
GARBAGE_THRESHOLDS: Final = (2_000, 10, 1_000)
"""Full collections stop all threads for as long as it takes to look at everything that waits somewhere, tens of
milliseconds beside a backlog.  They come after 20 million objects more than were freed, not after a quarter more; hardly
anything here is part of a cycle."""


def take_turns() -> None:
    """Set once, before the first thread."""
    sys.setswitchinterval(SWITCH_SECONDS)


def settle() -> None:
    """What was loaded so far stays.  With it, each full collection stops all threads for 25 ms; without, for less than
    one."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
