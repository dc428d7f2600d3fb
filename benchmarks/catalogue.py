"""Every figure: what it is, in which unit, and where it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from benchmarks.rows import clients, lookup, noop, store
from benchmarks.rows.site import Figures, Site

ROWS: Final[Mapping[str, Callable[[Site], Figures]]] = {
    "noop": noop.alone,
    "beside": noop.beside,
    "lookup": lookup.cycle,
    "grown": lookup.grown,
    "clients": clients.together,
    "store": store.store,
}
"""By the name that `--only` takes: what is asked of a running server."""
INDEX: Final = "l1"
TRANSFER: Final = "transfer"
ROW_NAMES: Final = (*ROWS, INDEX, TRANSFER)


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a figure should be: a number, or relative to the echo of the same run."""

    amount: float
    relative: Literal["", "plus", "times"] = ""

    def value(self, echo: float | None) -> float | None:
        """None where it needs an echo and there is none."""
        if not self.relative:
            return self.amount
        if echo is None:
            return None
        return echo + self.amount if self.relative == "plus" else echo * self.amount


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    label: str
    unit: str
    digits: int = 2
    more_is_better: bool = False
    aims: Mapping[str, Aim] = field(default_factory=dict)
    """By the name of one of our subjects."""

    def reached(self, value: float, aim: float) -> bool:
        return value >= aim if self.more_is_better else value <= aim


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that are shown together."""

    name: str
    heading: str
    says: str
    figures: Sequence[Figure]


def _aims(native: Aim | float, pure: Aim | float) -> Mapping[str, Aim]:
    both = {"native": native, "pure": pure}
    return {name: aim if isinstance(aim, Aim) else Aim(aim) for name, aim in both.items()}


_ECHO_TIMES: Final = Aim(1.3, "times")
_LOOKUP_64: Final = _aims(Aim(0.25, "plus"), 1.2)
_LOOKUP_512: Final = _aims(2.5, 8.0)
_BESIDE: Final = _aims(1.0, 10.0)

TABLES: Final = (
    Table(
        "round-trips",
        "Round trips",
        "One `noop` at a time over a bare socket: alone, and while another engine looks up 131,072 tokens without pause, "
        "the same prompt each time (known) or one that the server has never seen (new).",
        (
            Figure("noop_p50_us", "noop, p50", "us", 0, aims=_aims(_ECHO_TIMES, _ECHO_TIMES)),
            Figure("noop_p99_us", "noop, p99", "us", 0),
            Figure("noop_cpu_us", "noop, server CPU", "us", 0),
            Figure("noop_p50_beside_known_ms", "noop beside known prompts, p50", "ms"),
            Figure("noop_p99_beside_known_ms", "noop beside known prompts, p99", "ms", aims=_BESIDE),
            Figure("beside_known_lookups_s", "lookups of known prompts meanwhile", "per s", 0, True),
            Figure("noop_p50_beside_new_ms", "noop beside new prompts, p50", "ms"),
            Figure("noop_p99_beside_new_ms", "noop beside new prompts, p99", "ms", aims=_BESIDE),
            Figure("beside_new_lookups_s", "lookups of new prompts meanwhile", "per s", 0, True),
        ),
    ),
    Table(
        "lookups",
        "Lookups",
        "The four requests that a scheduler sends for one prompt (`lookup`, `wait_prefetch_status`, `free_lookup_locks`, "
        "`end_session`), all chunks hit, a new request id each time.  *Known* prompts were read by the server before; of *new* "
        "ones it has the chunks and has never read the bytes; *grown* is a conversation that gains one chunk of 256 tokens "
        "per turn.  CPU is all of the server's threads for the whole cycle; the wait is "
        "until the hits are known.",
        (
            Figure("lookup_64_known_cpu_ms", "64 chunks, known, server CPU", "ms", aims=_LOOKUP_64),
            Figure("lookup_64_new_cpu_ms", "64 chunks, new, server CPU", "ms", aims=_LOOKUP_64),
            Figure("lookup_512_known_cpu_ms", "512 chunks, known, server CPU", "ms", aims=_LOOKUP_512),
            Figure("lookup_512_new_cpu_ms", "512 chunks, new, server CPU", "ms", aims=_LOOKUP_512),
            Figure(
                "lookup_grown_cpu_ms",
                "513 chunks and more, grown, server CPU",
                "ms",
                aims=_aims(Aim(0.2, "plus"), 4.0),
            ),
            Figure("lookup_64_known_wait_ms", "64 chunks, known, wait, p50", "ms"),
            Figure("lookup_64_new_wait_ms", "64 chunks, new, wait, p50", "ms"),
            Figure("lookup_512_known_wait_ms", "512 chunks, known, wait, p50", "ms"),
            Figure("lookup_512_new_wait_ms", "512 chunks, new, wait, p50", "ms"),
            Figure("lookup_grown_wait_ms", "grown, wait, p50", "ms"),
        ),
    ),
    Table(
        "engines",
        "Several engines, and stores",
        "Four client processes, each looking up its own known prompt of 64 chunks; and what storing a prompt costs after its "
        "lookup, `prepare_store` and `commit_store` without the copying.",
        (
            Figure("clients_cycles_s", "four engines, lookup cycles", "per s", 0, True, _aims(2000.0, 1000.0)),
            Figure("clients_cpu_ms", "four engines, server CPU per cycle", "ms"),
            Figure("store_64_cpu_us", "store of 64 chunks, server CPU per chunk", "us", 1, aims=_aims(8.0, 16.0)),
            Figure("store_512_cpu_us", "store of 512 chunks, server CPU per chunk", "us", 1, aims=_aims(8.0, 16.0)),
        ),
    ),
    Table(
        "l1",
        "A million objects in L1",
        "In process, objects without bytes, LRU.  A hit is what a lookup does to chunks that are there, in batches of 32: "
        "held, released, and the policy notified.  A stall is the longest that such a batch took while a fifth of all objects "
        "was evicted.",
        (
            Figure("l1_bytes_per_key", "memory per object beyond its bytes", "B", 0, aims=_aims(250.0, 250.0)),
            Figure("l1_fill_us", "CPU per object stored", "us"),
            Figure("l1_hit_us", "CPU per object hit", "us", aims=_aims(0.8, 0.9)),
            Figure("l1_stall_alone_ms", "longest of all batches, nothing else running", "ms"),
            Figure("l1_stall_p999_ms", "p99.9 of the batches beside eviction", "ms"),
            Figure("l1_stall_cpu_ms", "most CPU that eviction got while one waited", "ms", 1, aims=_aims(5.0, 5.0)),
            Figure("l1_stall_ms", "longest stall beside eviction", "ms", 1, aims=_aims(5.0, 5.0)),
            Figure("l1_evict_us", "time per evicted object, requests going on", "us"),
        ),
    ),
    Table(
        "transfer",
        "Store and retrieve through the stock client",
        "One request of 4 chunks of 256 tokens, 128 MiB, through shared memory by the client of LMCache 0.5.6 (torch on the "
        "CPU, one thread).  In wall time the servers are the same within the noise: most of it is the client copying between "
        "its paged cache and the segment.",
        (
            Figure("transfer_store_ms", "store", "ms", 0),
            Figure("transfer_retrieve_ms", "retrieve", "ms", 0),
            Figure("transfer_store_cpu_ms", "store, server CPU", "ms"),
            Figure("transfer_retrieve_cpu_ms", "retrieve, server CPU", "ms"),
        ),
    ),
)

FIGURES: Final = {figure.name: figure for table in TABLES for figure in table.figures}
