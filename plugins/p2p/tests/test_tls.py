"""The channel `tcp` encrypts what leaves the machine, and reads only from whom the hello has named."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core import ChannelContext, ResourceError, SystemClock
from lmcache_devkit import free_port
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.service_suite import FakeServiceContext
from lmcache_p2p.service import PeerService
from lmcache_p2p.settings import PeerFlags, PeerSettings, TcpSettings, apply
from lmcache_p2p.tcp_channel import Description, TcpChannel
from lmcache_p2p.tls import Tls, new_certificate

EVERYWHERE = "0.0.0.0"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(stack: ExitStack, host: str = "127.0.0.1", **settings: Any) -> TcpChannel:
    context = ChannelContext(BorrowedMemory(1 << 20).region, host, "b" * 32, SystemClock(), logging.getLogger("tcp"))
    channel = TcpChannel(TcpSettings.model_validate(settings), context)
    stack.callback(channel.close, 1.0)
    return channel


def about(channel: TcpChannel) -> Description:
    return msgspec.msgpack.decode(channel.describe(), type=Description)


def changed(channel: TcpChannel, **fields: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(about(channel), **fields))


def files(folder: Path, name: str) -> dict[str, str]:
    (folder / name).mkdir()
    certificate, key = new_certificate(folder / name)
    return {"tls_cert": str(certificate), "tls_key": str(key)}


def test_beyond_loopback_it_encrypts_with_a_certificate_of_its_own(stack: ExitStack) -> None:
    owner, other = opened(stack, EVERYWHERE), opened(stack, EVERYWHERE)
    assert len(about(owner).fingerprint) == 32
    assert about(owner).fingerprint != about(other).fingerprint, "each start makes one"
    opened(stack).connect(changed(owner, host="127.0.0.1")).close()


def test_on_loopback_it_does_not(stack: ExitStack) -> None:
    assert about(opened(stack)).fingerprint == b""


def test_plain_text_to_other_machines_needs_the_flag_on_both_sides(stack: ExitStack) -> None:
    owner = opened(stack, EVERYWHERE, plaintext=True)
    assert about(owner).fingerprint == b""
    with pytest.raises(LMCacheError, match="unencrypted; give --p2p-plaintext"):
        opened(stack).connect(owner.describe())
    opened(stack, plaintext=True).connect(owner.describe()).close()


def test_another_certificate_than_the_hello_has_named_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    owner, other = opened(stack, **files(tmp_path, "a")), opened(stack, **files(tmp_path, "b"))
    with pytest.raises(LMCacheError, match="not the one that its hello has named"):
        opened(stack).connect(changed(owner, fingerprint=about(other).fingerprint))
    opened(stack).connect(owner.describe()).close()


def test_what_crosses_the_wire_is_not_what_lies_in_memory(stack: ExitStack, tmp_path: Path) -> None:
    """A client that does not encrypt gets no byte of an answer."""
    owner = opened(stack, **files(tmp_path, "a"))
    with socket.create_connection((about(owner).host, about(owner).port), 5) as client:
        client.sendall(b"LMCKVT02" + about(owner).ticket + bytes(20))
        client.settimeout(5)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            said = client.recv(4096)
        assert said[:1] in (b"", b"\x15"), "nothing, or an alert of TLS"


def test_with_an_authority_both_sides_show_a_certificate_of_it(stack: ExitStack, tmp_path: Path) -> None:
    member, outsider = files(tmp_path, "member"), files(tmp_path, "other")
    owner = opened(stack, **member, tls_ca=member["tls_cert"])
    route = opened(stack, **member, tls_ca=member["tls_cert"]).connect(owner.describe())
    route.close()
    with pytest.raises(LMCacheError, match="verify failed"):
        opened(stack, **outsider, tls_ca=outsider["tls_cert"]).connect(owner.describe())
    tls = Tls(TcpSettings.model_validate(outsider))
    with socket.create_connection((about(owner).host, about(owner).port), 5) as raw:
        assert ended(raw, tls.client, about(owner).ticket)


def ended(raw: socket.socket, context: ssl.SSLContext, ticket: bytes) -> bool:
    """Does the owner cut off a client with this context, before it answers?"""
    try:
        with context.wrap_socket(raw) as client:
            client.sendall(b"LMCKVT02" + ticket + bytes(20))
            return not client.recv(1)
    except OSError:
        return True


@pytest.mark.parametrize("wrong", ["nowhere.pem", "text.pem"])
def test_a_certificate_that_is_none_is_an_error_with_the_remedy(stack: ExitStack, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "text.pem").write_text("text")
    with pytest.raises(ConfigError, match="as PEM files"):
        opened(stack, tls_cert=str(tmp_path / wrong), tls_key=str(tmp_path / wrong))


@pytest.mark.parametrize(
    "settings",
    [{"tls_cert": "a"}, {"tls_key": "a"}, {"tls_ca": "a"}, {"tls_cert": "a", "tls_key": "a", "plaintext": True}],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--p2p-tls-cert"):
        TcpSettings.model_validate(settings)


def test_the_flags_reach_the_channel() -> None:
    flags = {"p2p_advertise_url": "tcp://127.0.0.1:7600", "p2p_tls_cert": "c", "p2p_tls_key": "k", "p2p_tls_ca": "a"}
    settings = TcpSettings.model_validate(apply(PeerFlags.model_validate(flags), frozenset())["transfer_channel:tcp"])
    assert (settings.tls_cert, settings.tls_key, settings.tls_ca) == (Path("c"), Path("k"), Path("a"))
    port = apply(PeerFlags.model_validate({**flags, "p2p_tcp_port": 7700}), frozenset())["transfer_channel:tcp"]["port"]
    assert TcpSettings.model_validate({"port": port}).port == 7700


def test_the_port_is_the_one_that_is_given(stack: ExitStack) -> None:
    port = free_port()
    assert about(opened(stack, port=port)).port == port
    with pytest.raises(ResourceError, match=f"--p2p-tcp-port another port than {port}"):
        opened(stack, port=port)


@pytest.mark.parametrize(
    ("host", "plaintext", "conditions"),
    [("10.0.0.7", True, ["peers_plaintext"]), ("10.0.0.7", False, []), ("127.0.0.1", True, [])],
)
def test_plain_text_to_other_machines_is_a_condition(
    stack: ExitStack, host: str, plaintext: bool, conditions: list[str]
) -> None:
    class Context(FakeServiceContext):
        def open_transfer_channel(self, name: str, host: str) -> TcpChannel:
            return opened(stack)

    settings = {"coordinator_url": ["http://127.0.0.1:1"], "p2p_plaintext": plaintext}
    url = f"tcp://{host}:7600"
    service = PeerService(
        PeerSettings.model_validate({"advertise_url": url, "listen_url": url}),
        Context(settings=settings, transfer_channels=("tcp",)),
    )
    stack.callback(service.close)
    assert [each.name for each in service.conditions()] == conditions


def test_channels_of_other_plugins_are_tried_before_sockets(stack: ExitStack) -> None:
    tried: list[str] = []

    class Context(FakeServiceContext):
        def open_transfer_channel(self, name: str, host: str) -> TcpChannel:
            tried.append(name)
            return opened(stack)

    url = "tcp://127.0.0.1:7600"
    service = PeerService(
        PeerSettings.model_validate({"advertise_url": url, "listen_url": url}),
        Context(settings={"coordinator_url": ["http://127.0.0.1:1"]}, transfer_channels=("tcp", "acme", "shm")),
    )
    stack.callback(service.close)
    assert tried == ["shm", "acme", "tcp"]
