"""Keys that are taken for each other."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

from lmcache_core import ObjectKey
from plugins.devkit.tests.mutants.file_adapter import FileAdapter, killed_by


@killed_by("names_of_any_characters_are_kept_apart")
class EscapesToOneCharacter(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        names = f"{key.space.model_name}-{key.space.cache_salt}"
        return re.sub(r"[^A-Za-z0-9]", "-", names)[:150] + key.chunk_hash.hex()


@killed_by("names_that_look_alike_are_kept_apart")
class FoldsCase(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        space = replace(key.space, model_name=key.space.model_name.lower())
        return ObjectKey(space, key.chunk_hash).object_id.hex()


@killed_by("names_that_look_alike_are_kept_apart")
class NormalizesUnicode(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        space = replace(key.space, cache_salt=unicodedata.normalize("NFC", key.space.cache_salt))
        return ObjectKey(space, key.chunk_hash).object_id.hex()


@killed_by("salts_of_any_text_are_kept_apart")
class StripsSalts(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        space = replace(key.space, cache_salt=re.sub(r"[^\w]", "", key.space.cache_salt))
        return ObjectKey(space, key.chunk_hash).object_id.hex()


@killed_by("one_hash_in_two_spaces_is_two_objects")
class IgnoresTheSalt(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        return ObjectKey(replace(key.space, cache_salt=""), key.chunk_hash).object_id.hex()


@killed_by("one_hash_in_two_spaces_is_two_objects")
class IgnoresTheLayout(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        return ObjectKey(replace(key.space, layout=bytes(16)), key.chunk_hash).object_id.hex()


@killed_by("hashes_that_differ_in_one_bit_are_kept_apart")
class ShortensTheHash(FileAdapter):
    def name(self, key: ObjectKey) -> str:
        return ObjectKey(key.space, key.chunk_hash[:8] + bytes(24)).object_id.hex()
