"""Where a page of a listing ended, as callers send it back."""

from __future__ import annotations

import base64
import binascii

import msgspec

from lmcache_client.errors import LMCacheError


class PageTokenError(LMCacheError):
    """No token of this listing."""


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """`listing` names what is listed: a token is for that alone."""

    listing: str
    place: str | int

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str, listing: str) -> PageToken:
        """Raises PageTokenError for what is not a token of this listing.  The position in it is not verified."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            token = _decode(data)
        except (binascii.Error, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            token = None
        if token is None or token.listing != listing:
            raise PageTokenError("page_token is none of this listing; begin again without one")
        return token


_decode = msgspec.json.Decoder(PageToken).decode
