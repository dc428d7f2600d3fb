"""Which tokens of reused KV are computed again, so that documents learn of what is before them.

chosen = selector("cacheblend")
facts = Facts((Segment(10, 522, 0),), budget(chosen, 0.15, 512), 16, deviation=deviation)
runs = select(chosen, facts)
"""

from lmcache_blend_select.choice import SelectorError, available, budget, select, selector
from lmcache_blend_select.contract import Facts, Need, Run, Segment, Selector, runs_of

__all__ = [
    "Facts",
    "Need",
    "Run",
    "Segment",
    "Selector",
    "SelectorError",
    "available",
    "budget",
    "runs_of",
    "select",
    "selector",
]

__version__ = "0.1.0"
