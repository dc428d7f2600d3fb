"""What servers say of themselves that matters here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lmcache_l2_redis.errors import DeniedError, error_of
from lmcache_l2_redis.replies import ErrorReply, command
from lmcache_l2_redis.topology import Topology


class ServerFacts(NamedTuple):
    """Of all servers together.  A server that does not say counts as one that evicts and writes to disk."""

    evicts: bool
    appends: bool
    policies: tuple[str, ...]

    def doubts_of_durability(self) -> Iterator[str]:
        if not self.appends:
            yield "the server does not write what it is given to disk (appendonly is off)"
        if self.evicts:
            yield f"the server evicts when its memory is full (maxmemory-policy {', '.join(self.policies) or 'unknown'})"


async def server_facts(topology: Topology) -> ServerFacts:
    """Ask every server.  Raises OSError, ProtocolError, or what it means where nothing at all may be asked."""
    evicts, appends = False, True
    policies = set()
    for node in topology.nodes:
        # Both in one reply is for newer servers only.
        replies = await node.ask(command("INFO", "memory"), command("INFO", "persistence"))
        facts: dict[str, str] = {}
        for reply in replies:
            if isinstance(reply, ErrorReply):
                error = error_of(reply, node.address)
                if isinstance(error, DeniedError) and reply.code == "NOPERM":
                    continue  # a user without the right to ask
                raise error
            text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
            facts |= dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        policy = facts.get("maxmemory_policy", "")
        has_limit = facts.get("maxmemory", "") != "0"
        evicts |= has_limit and policy != "noeviction"
        policies |= {policy} - {""}
        appends &= facts.get("aof_enabled", "1") == "1"
    return ServerFacts(evicts, appends, tuple(sorted(policies)))
