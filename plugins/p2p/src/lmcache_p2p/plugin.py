"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, SettingGroup, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            "p2p",
            "The memory of the other servers of a fleet",
            "lmcache_p2p.adapter:open_adapter",
            capabilities=Capability.READ_ONLY | Capability.VERIFIES,
        )
    ]


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    operations = [f"handoff_{step}" for step in ("open", "chunk", "complete", "cancel", "wait", "follow", "engine")]
    return [
        Offer(
            "handoffs",
            "Tells engines that decode how far engines that prefill are",
            "lmcache_p2p.handoffs:open_module",
            "lmcache_p2p.handoffs:HandoffSettings",
            operations=tuple(operations),
            default=True,
        )
    ]


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [
        Offer(
            "p2p",
            "Leases this server's memory to its peers, and reads theirs",
            "lmcache_p2p.service:PeerService",
            "lmcache_p2p.settings:PeerSettings",
            check="lmcache_p2p.doctor:check",
        )
    ]


@hookimpl
def lmcache_transfer_channels() -> Sequence[Offer]:
    return [
        Offer(
            "shm",
            "Copies out of the shared memory of servers on this machine",
            "lmcache_p2p.shm_channel:ShmChannel",
        ),
        Offer(
            "tcp",
            "Reads over TCP connections",
            "lmcache_p2p.tcp_channel:TcpChannel",
            "lmcache_p2p.settings:TcpSettings",
        ),
    ]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    peers, handoffs = "lmcache_p2p.settings", "lmcache_p2p.handoffs"
    return [
        SettingGroup("Peers", f"{peers}:PeerFlags", f"{peers}:apply"),
        SettingGroup("Prefill and decode", f"{handoffs}:HandoffFlags", f"{handoffs}:apply"),
    ]
