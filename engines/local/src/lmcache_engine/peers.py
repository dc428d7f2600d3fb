"""Settings of a cache that reads out of the memory of others, and lets them read: `enable_p2p` and `enable_pd`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from lmcache_client.errors import ConfigError

ROLES: Final = {"sender": "producer", "producer": "producer", "receiver": "receiver", "both": "both"}
"""Of `pd_role`, and what they are called here."""
FLUSH_SECONDS: Final = 0.1
"""Until the coordinator hears what was stored: a receiver looks it up at once."""
_PARTS: Final = {"lmcache_p2p": "lmcache-p2p", "lmcache_fleet_member": "lmcache-fleet-member"}
_GIB: Final = 2**30


def role(values: Mapping[str, Any]) -> str:
    """`producer`, `receiver`, `both` or `none`.  Raises ConfigError."""
    if not values["enable_pd"]:
        return "none"
    if values["pd_role"] is None:
        raise ConfigError("'enable_pd' is True, and 'pd_role' is missing: sender (or producer), receiver, or both")
    return ROLES[values["pd_role"]]


def l1_size_gb(values: Mapping[str, Any]) -> float:
    """Memory has the larger of both sizes; `pd_buffer_size` is bytes, and counts with `enable_pd`."""
    handed_over = (values["pd_buffer_size"] or 0) / _GIB if values["enable_pd"] else 0.0
    return max(float(values["max_local_cpu_size"]), handed_over)


def peer_settings(values: Mapping[str, Any], own: Mapping[str, Any], worker: int) -> dict[str, Any]:
    """Empty where neither key is on.  `own`: settings of `lmcache server` that are given.  `worker`: the place of its port in
    the lists.  Raises ConfigError for what is missing."""
    key = next((name for name in ("enable_pd", "enable_p2p") if values[name]), None)
    if key is None:
        return {}
    role(values)
    if missing := [distribution for module, distribution in _PARTS.items() if find_spec(module) is None]:
        raise ConfigError(f"'{key}' is True: pip install {' '.join(missing)}")
    if not own.get("coordinator_url"):
        raise ConfigError(
            f"'{key}' is True, and peers find each other by a coordinator: run `lmcache coordinator` (lmcache-coordinator), "
            "and give extra_config.server its address, as coordinator_url: http://HOST:9300"
        )
    found: dict[str, Any] = {"coordinator_l2_event_flush_interval": FLUSH_SECONDS}
    if "p2p_advertise_url" not in own:
        found["p2p_advertise_url"] = _address(key, values, worker)
    if worker and values["lmcache_instance_id"]:
        found["instance_id"] = f"{values['lmcache_instance_id']}-{worker}"
    return found


def _address(key: str, values: Mapping[str, Any], worker: int) -> str:
    """Of this process, for its peers."""
    places = (("pd_peer_host", "pd_peer_init_port"), ("p2p_host", "p2p_init_ports"))
    for host, ports in places if key == "enable_pd" else places[1:]:
        if values[host] is None or values[ports] is None:
            continue
        if worker >= len(values[ports]):
            raise ConfigError(f"'{ports}' has {len(values[ports])} ports, and worker {worker} needs one of its own")
        return f"tcp://{values[host]}:{values[ports][worker]}"
    named = " or ".join(f"'{host}' and '{ports}'" for host, ports in (places if key == "enable_pd" else places[1:]))
    raise ConfigError(f"'{key}' is True, and its peers do not know where this process is: give {named}, a sender, too")
