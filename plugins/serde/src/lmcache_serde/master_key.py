"""Where a master key comes from, and what follows from it."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from pydantic import Field, SecretStr, model_validator

from lmcache_core import ConfigError, PluginSettings, ResourceError

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
GCM_NONCE_BYTES: Final = 12

_FILE_MAX_BYTES: Final = 4096
_DISTINCT_MIN: Final = 8
"""32 random bytes have fewer distinct values with a probability below 10^-40."""
_ROOT, _ID, _TENANT, _OBJECT = (f"lmcache-serde aesgcm 1 {use}\0".encode() for use in ("root", "id", "salt", "object"))


class KeySource(PluginSettings):
    """One master key of 256 bits: 64 hexadecimal digits or base64; a file may hold the 32 bytes themselves.  Give exactly
    one of `file`, `env` and `value`."""

    file: Annotated[Path | None, Field(description="File that holds the key.", examples=["/etc/lmcache/kv.key"])] = None
    env: Annotated[str | None, Field(min_length=1, description="Environment variable that holds the key.")] = None
    value: Annotated[SecretStr | None, Field(description="The key itself; better in a file or a variable.")] = None

    @model_validator(mode="after")
    def _one_source(self) -> KeySource:
        given = [name for name in ("file", "env", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a key comes from one of file, env and value; given: {', '.join(given) or 'none'}")
        return self


class ObjectSecret(NamedTuple):
    """Used for one encryption, ever."""

    key: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A root, never the master key itself, and the number by which headers name it.  Neither is shown by `repr`."""

    key_id: bytes
    _root: bytes = field(repr=False)

    @classmethod
    def of(cls, master: bytes) -> MasterKey:
        root = HKDF(SHA256(), KEY_BYTES, salt=None, info=_ROOT).derive(master)
        return cls(HKDFExpand(SHA256(), KEY_ID_BYTES, _ID).derive(root), root)

    def object_secret(self, cache_salt: str, nonce: bytes) -> ObjectSecret:
        """Of one object of one tenant; `nonce` is random and long enough to be drawn once only."""
        tenant = HKDFExpand(SHA256(), KEY_BYTES, _TENANT + cache_salt.encode()).derive(self._root)
        both = HKDFExpand(SHA256(), KEY_BYTES + GCM_NONCE_BYTES, _OBJECT + nonce).derive(tenant)
        return ObjectSecret(both[:KEY_BYTES], both[KEY_BYTES:])


def read_key(source: KeySource, name: str) -> MasterKey:
    """Raises ResourceError where the file or variable is not there, ConfigError where it holds no key.  `name` is the
    source in messages, which never show a byte of it."""
    if source.value is not None:
        return MasterKey.of(_parsed(source.value.get_secret_value().encode(), f"{name}.value"))
    if source.env is not None:
        if not (text := os.environ.get(source.env)):
            raise ResourceError(f"{name}.env: there is no environment variable '{source.env}', or it is empty; set it")
        return MasterKey.of(_parsed(text.encode(), f"{name}.env: the variable '{source.env}'"))
    assert source.file is not None  # one of the three is given
    try:
        with source.file.open("rb") as file:
            data = file.read(_FILE_MAX_BYTES)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ResourceError(f"{name}.file: {source.file} cannot be read ({reason})") from None
    return MasterKey.of(_parsed(data, f"{name}.file: {source.file}"))


def _parsed(data: bytes, where: str) -> bytes:
    text = data.strip()
    # 32 printable characters are a password, not a key; random bytes are that once in 10^9 times.
    key = data if len(data) == KEY_BYTES and not data.isascii() else b""
    try:
        if len(text) == 2 * KEY_BYTES:
            key = bytes.fromhex(text.decode("ascii"))
        elif not key:
            key = base64.b64decode(text, validate=True)
    except ValueError:
        pass
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{where} holds no key of {KEY_BYTES} bytes as 64 hexadecimal digits or base64 ({len(data)} bytes are there); "
            f"make one with: openssl rand -hex {KEY_BYTES}"
        )
    if len(set(key)) < _DISTINCT_MIN:
        raise ConfigError(f"{where} holds a key that is not random; make one with: openssl rand -hex {KEY_BYTES}")
    return key
