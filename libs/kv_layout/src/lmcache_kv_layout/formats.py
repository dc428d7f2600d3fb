"""Paged layouts of engines, by the names and numbers that engines and servers share."""

from __future__ import annotations

from enum import IntEnum


class EngineKVFormat(IntEnum):
    """The name spells the dimensions, outermost first; `X` is a level of lists.

    NB blocks, NL layers, BS slots of a block, NBBS both folded into one, NH heads, HS head size, CS the packed K and V of a
    head, NP planes, TWO is K and V, ONE has one element; BSV_BSS are the values of a block and behind them its scales.
    """

    NB_NL_TWO_BS_NH_HS = 0
    NL_X_TWO_NB_BS_NH_HS = 1
    NL_X_NB_TWO_BS_NH_HS = 2
    NL_X_NB_BS_HS = 3
    TWO_X_NL_X_NBBS_NH_HS = 4
    NL_X_NBBS_ONE_HS = 5
    NL_X_TWO_NB_NH_BS_HS = 6
    NL_X_NB_TWO_NH_BS_HS = 7
    NB_NL_TWO_NH_BS_HS = 8
    TWO_X_NL_X_NB_BS_NH_HS = 9
    NL_X_NB_NH_BS_TWO_HS = 10
    NL_X_NB_BS_NH_TWO_HS = 11
    NL_X_NB_NH_BS_CS = 12
    NL_X_NB_BS_NH_CS = 13
    NL_X_NB_BSV_BSS = 14
    NL_X_TWO_NB_NH_ONE_BS_HS = 15
    NL_X_TWO_X_NB_BS_NH_HS = 16
    NL_X_NP_X_NB_BS_ONE_HS = 17
    NL_X_NB_BS_NH_HS = 18


F = EngineKVFormat

DIMENSIONS = {
    F.NB_NL_TWO_BS_NH_HS: "blkshd",
    F.NL_X_TWO_NB_BS_NH_HS: "kbshd",
    F.NL_X_NB_TWO_BS_NH_HS: "bkshd",
    F.NL_X_NB_BS_HS: "bsd",
    F.TWO_X_NL_X_NBBS_NH_HS: "phd",
    F.NL_X_NBBS_ONE_HS: "p1d",
    F.NL_X_TWO_NB_NH_BS_HS: "kbhsd",
    F.NL_X_NB_TWO_NH_BS_HS: "bkhsd",
    F.NB_NL_TWO_NH_BS_HS: "blkhsd",
    F.TWO_X_NL_X_NB_BS_NH_HS: "bshd",
    F.NL_X_NB_NH_BS_TWO_HS: "bhstd",
    F.NL_X_NB_BS_NH_TWO_HS: "bshtd",
    F.NL_X_NB_NH_BS_CS: "bhsd",
    F.NL_X_NB_BS_NH_CS: "bshd",
    F.NL_X_NB_BSV_BSS: "bsd",
    F.NL_X_TWO_NB_NH_ONE_BS_HS: "kbh1sd",
    F.NL_X_TWO_X_NB_BS_NH_HS: "bshd",
    F.NL_X_NP_X_NB_BS_ONE_HS: "bs1d",
    F.NL_X_NB_BS_NH_HS: "bshd",
}
"""What each dimension of one tensor is: `b` block, `s` slot, `p` slots of all blocks, `h` head, `d` element of a head's row,
`t` the half of a row that holds K or V, `k` K or V, `l` layer, `1` one element."""
