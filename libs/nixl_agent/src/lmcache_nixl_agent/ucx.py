"""An agent that reads the memory of other processes by UCX, and what UCX takes from the environment.

UCX has to be limited by variables: NIXL's own parameter for devices does not keep it from listening on all of them."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from lmcache_core import ConfigError
from lmcache_nixl_agent.agent import NixlAgent

INFINIBAND: Final = Path("/sys/class/infiniband")
_LOOPBACK: Final = ip_network("127.0.0.0/8")


def open_ucx_agent(name: str, address: str) -> NixlAgent:
    """`name` is this agent's for all peers, so let no other have it.  UCX listens at the network device that has `address`,
    on a port of its choice, and in shared memory of this machine.  Raises ConfigError where no device has it, and
    ResourceError where NIXL or its backend is not available."""
    with _environment(ucx_variables(address)):
        return NixlAgent.open(name, "UCX", {})


def ucx_variables(address: str, infiniband: Path = INFINIBAND) -> Mapping[str, str]:
    """What UCX is to find in its environment.  Variables that an operator has set are not among them."""
    device = _device_of(address)
    adapters = sorted(infiniband.iterdir()) if infiniband.is_dir() else []
    ports = [
        f"{adapter.name}:{port.name}"
        for adapter in adapters
        if (adapter / "device" / "net" / device).exists()
        for port in sorted((adapter / "ports").iterdir())
    ]
    wanted = {"UCX_NET_DEVICES": ",".join([*ports, device])}
    wanted["UCX_LOG_FILE"] = "stderr"  # standard output belongs to the process
    if not adapters:
        wanted["UCX_MODULES"] = "^ib"  # a process that has loaded it without a device dies at its exit
    return {variable: value for variable, value in wanted.items() if variable not in os.environ}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """UCX reads them when a backend is made; child processes of this one are not to have them."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for variable in variables:
            del os.environ[variable]


class _Address(ctypes.Structure):
    """The beginning of a sockaddr of either family."""

    _fields_ = (
        ("family", ctypes.c_ushort), ("port", ctypes.c_ushort), ("v4", ctypes.c_ubyte * 4), ("v6", ctypes.c_ubyte * 16)
    )  # fmt: skip


class _Interface(ctypes.Structure):
    """ifaddrs, up to the field that is read."""


_Interface._fields_ = (
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Address)),
)


def _device_of(address: str) -> str:
    """Raises ConfigError where it is not an address of this machine."""
    wanted = ip_address(address)
    for device, its in _addresses():
        if its == wanted or (wanted in _LOOPBACK and its in _LOOPBACK):
            return device
    raise ConfigError(f"{address} is not an address of this machine's network devices")


def _addresses() -> Iterator[tuple[str, object]]:
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "the addresses of this machine cannot be read")
    try:
        found = first
        while found:
            interface = found.contents
            if interface.address:
                its = interface.address.contents
                if its.family == socket.AF_INET:
                    yield interface.name.decode(), ip_address(bytes(its.v4))
                elif its.family == socket.AF_INET6:
                    yield interface.name.decode(), ip_address(bytes(its.v6))
            found = interface.next
    finally:
        library.freeifaddrs(first)
