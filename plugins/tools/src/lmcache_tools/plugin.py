"""What this distribution offers: the commands of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Offer, hookimpl

_HERE: Final = "lmcache_tools.commands"
_SUMMARIES: Final = {
    "adapters.add": "open an L2 adapter and use it",
    "adapters.drain": "store nothing new in an L2 adapter; what waits for it is stored",
    "adapters.list": "show the L2 adapters of a running server, and what each is doing",
    "adapters.remove": "drain an L2 adapter and take it out of the server",
    "adapters.resume": "take a drain back",
    "bench.l2": "measure L2 adapters beside what their media can do",
    "bench.transfer": "measure a transfer channel between two processes or two machines",
    "clear": "drop what a running server has in L1",
    "completion": "print a script with which a shell completes commands and flags",
    "config.get": "show every setting of a running server, its value and where that comes from",
    "config.set": "change settings of a running server, until it is restarted",
    "config.show": "show every setting that a server would have, its value and where that comes from",
    "describe": "say what a running server is, and how many tokens fit into each tier",
    "doctor": "look at a machine and a configuration, and say what to change",
    "fleet.instances": "show the servers of a fleet",
    "fleet.keys": "show how many keys each server of a fleet has, and where",
    "fleet.lookup": "show which servers have the chunks of a prompt, and where",
    "fleet.peers": "show what servers of a fleet read out of each other's memory",
    "fleet.remove": "take a server out of a fleet's directory",
    "fleet.status": "show how a fleet is, what it holds, and what is wrong",
    "fleet.usage": "show what each cache salt uses of shared L2, and its limit",
    "keys": "list what a running server holds, object by object",
    "pins.add": "keep chunks in L1, under a name",
    "pins.list": "show what is pinned in L1",
    "pins.remove": "release a pin",
    "ping.engine": "ask whether an inference engine answers, and how fast",
    "ping.kvcache": "ask whether the engine port and the admin API of a cache server answer, and how fast",
    "plugins.example": "print a command line that uses what a plugin offers",
    "prefetch": "bring chunks from L2 into a running server's L1",
    "quota.delete": "take a salt's limit away; the default one applies to it then, if there is one",
    "quota.get": "show one salt's limit and use",
    "quota.list": "show every salt that has a limit or anything in L1",
    "quota.set": "limit what a cache salt may use of L1",
    "status": "show how a running server is, what it holds and for which tenants",
}
"""By name; the command `quota.set` is in `commands/quota_set.py`, and all of `fleet` in `commands/fleet.py`."""


def _target(name: str) -> str:
    group, _, word = name.partition(".")
    return f"{_HERE}.fleet:{word.upper()}" if group == "fleet" else f"{_HERE}.{name.replace('.', '_')}:COMMAND"


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    offers = [Offer(name, text, _target(name)) for name, text in _SUMMARIES.items()]
    return [*offers, Offer("kvcache.clear", "the same as `lmcache clear`", f"{_HERE}.clear:OF_KVCACHE")]
