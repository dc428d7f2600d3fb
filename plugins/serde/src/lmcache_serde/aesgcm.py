"""Encryption with AES-256-GCM, under a key that is used for one object.

    nonce, 24 random bytes | ciphertext, as long as what was given | tag, 16

Object key, length and the serde's parameters are associated data: what was stored for one object is not accepted for another.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from pydantic import Field

from lmcache_core import (
    ConfigError,
    DamagedObjectError,
    ObjectKey,
    ObjectLayout,
    PluginSettings,
    Serde,
    UnreadableObjectError,
)
from lmcache_serde.master_key import KEY_ID_BYTES, KeySource, MasterKey, read_key

FORMAT: Final = 1
NONCE_BYTES: Final = 24
"""Two of 2^64 objects share one with a probability of 2^-65."""
TAG_BYTES: Final = 16
MESSAGE_MAX_BYTES: Final = 2**36 - 32
"""GCM's own limit for one message."""
KEYS_MAX: Final = 16

_PIECE_BYTES = 1 << 30  # the library takes less than 2 GiB in one call
_DOMAIN = b"lmcache-serde aesgcm"
_LENGTH = struct.Struct("<Q")


class AesGcmSettings(PluginSettings):
    """Which keys: the first one writes, all of them read."""

    keys: Annotated[
        tuple[KeySource, ...],
        Field(
            min_length=1,
            max_length=KEYS_MAX,
            description="Master keys, each from a file, an environment variable or a value; the first one is used for "
            "writing, the others for reading what was written with them.",
        ),
    ]


class AesGcmSerde(Serde):
    """A tag that does not fit is a DamagedObjectError: wrong key, altered bytes, or another object's bytes."""

    conceals = True

    def __init__(self, keys: Sequence[MasterKey]) -> None:
        self._current = keys[0]
        self._by_id = {key.key_id: key for key in keys}
        self._parameters = bytes([FORMAT]) + self._current.key_id

    def parameters(self) -> bytes:
        return self._parameters

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return NONCE_BYTES + layout.payload_bytes + TAG_BYTES

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        length = len(payload)
        if length > MESSAGE_MAX_BYTES:
            raise ValueError(
                f"aesgcm: an object of {length} bytes; at most {MESSAGE_MAX_BYTES} may be encrypted as one"
            )
        nonce = os.urandom(NONCE_BYTES)
        secret = self._current.object_secret(key.space.cache_salt, nonce)
        encryptor = Cipher(AES(secret.key), GCM(secret.nonce)).encryptor()
        encryptor.authenticate_additional_data(_associated(key, length, self._parameters))
        into[:NONCE_BYTES] = nonce
        _through(encryptor, payload, into[NONCE_BYTES : NONCE_BYTES + length])
        encryptor.finalize()
        into[NONCE_BYTES + length : NONCE_BYTES + length + TAG_BYTES] = encryptor.tag
        return NONCE_BYTES + length + TAG_BYTES

    def decode(
        self, key: ObjectKey, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
    ) -> None:
        master = self._key_of(parameters)
        length = len(stored) - NONCE_BYTES - TAG_BYTES
        if length != len(into):
            raise DamagedObjectError(f"aesgcm: {len(stored)} bytes for an object of {len(into)}")
        secret = master.object_secret(key.space.cache_salt, bytes(stored[:NONCE_BYTES]))
        tag = bytes(stored[NONCE_BYTES + length :])
        decryptor = Cipher(AES(secret.key), GCM(secret.nonce)).decryptor()
        decryptor.authenticate_additional_data(_associated(key, length, parameters))
        _through(decryptor, stored[NONCE_BYTES : NONCE_BYTES + length], into)
        try:
            decryptor.finalize_with_tag(tag)
        except InvalidTag:
            np.frombuffer(into, np.uint8)[:] = 0  # what was not authenticated must not be read
            raise DamagedObjectError(
                f"aesgcm: the tag does not fit: altered, or another object's bytes (key {master.key_id.hex()})"
            ) from None

    def _key_of(self, parameters: bytes) -> MasterKey:
        if len(parameters) != 1 + KEY_ID_BYTES or parameters[0] != FORMAT:
            raise DamagedObjectError(f"aesgcm: parameters {parameters.hex()[:32]}; this version reads format {FORMAT}")
        master = self._by_id.get(parameters[1:])
        if master is None:
            known = ", ".join(key_id.hex() for key_id in self._by_id)
            raise UnreadableObjectError(f"aesgcm: written with key {parameters[1:].hex()}, not one of `keys` ({known})")
        return master


def open_aesgcm(settings: AesGcmSettings) -> AesGcmSerde:
    """Reads the keys.  Raises ConfigError and ResourceError that name the source and show nothing of it."""
    keys = [read_key(source, f"keys[{number}]") for number, source in enumerate(settings.keys)]
    if len({key.key_id for key in keys}) != len(keys):
        raise ConfigError("keys: the same key is there twice; list each once, the one that writes first")
    return AesGcmSerde(keys)


def _associated(key: ObjectKey, length: int, parameters: bytes) -> bytes:
    """Everything that the object is.  Each part has a fixed length or its length in front."""
    return _DOMAIN + _LENGTH.pack(length) + bytes([len(parameters)]) + parameters + key.canonical


def _through(context: CipherContext, source: memoryview, target: memoryview) -> None:
    """Straight from one memory to the other."""
    for begin in range(0, len(source), _PIECE_BYTES):
        piece = source[begin : begin + _PIECE_BYTES]
        context.update_into(piece, target[begin : begin + len(piece)])
