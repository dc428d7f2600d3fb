"""Which names engines may choose: they are kept with counts, open lookups and events, and shown to people."""

from __future__ import annotations

from typing import Final

from lmcache_client.errors import ProtocolError
from lmcache_client.messages import EngineKey
from lmcache_core.model.cache_salt import EMPTY_SALT_WORD, parse_salt
from lmcache_core.model.keys import CANONICAL_MAX_BYTES

REQUEST_ID_CHARS_MAX: Final = 1024


def check_names(key: EngineKey) -> None:
    """Raises ProtocolError for a model without a name, for names that are too long, since no object has longer ones of model
    and salt, and for salts that cannot be written where a tenant is named: a quota, a filter or a pin could not name them."""
    check_model_name(key.model_name)
    if key.cache_salt == EMPTY_SALT_WORD:
        raise ProtocolError(
            f"cache_salt '{EMPTY_SALT_WORD}' is how the empty salt is written; choose another name for the tenant"
        )
    if key.cache_salt:
        try:
            parse_salt(key.cache_salt)
        except ValueError as error:
            raise ProtocolError(f"cache_salt: {error}") from None
    if len(key.model_name) + len(key.cache_salt) > CANONICAL_MAX_BYTES:
        raise ProtocolError(
            f"model_name and cache_salt have {len(key.model_name)} and {len(key.cache_salt)} characters; together they "
            f"have at most {CANONICAL_MAX_BYTES}"
        )
    check_request_id(key.request_id)


def check_model_name(model_name: str) -> None:
    """Raises ProtocolError for none."""
    if not model_name:
        raise ProtocolError("model_name is empty; the engine must name the model that its chunks belong to")


def check_request_id(request_id: str) -> None:
    """Raises ProtocolError for one that is too long."""
    if len(request_id) > REQUEST_ID_CHARS_MAX:
        raise ProtocolError(f"request_id has {len(request_id)} characters; it has at most {REQUEST_ID_CHARS_MAX}")
