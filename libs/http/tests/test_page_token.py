"""Page tokens come back as they were given, and nothing else is one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_http.page_token import PageToken, PageTokenError


@given(listing=st.text(), place=st.one_of(st.text(), st.integers(0, 2**62)))
def test_a_token_names_its_place_in_its_listing(listing: str, place: str | int) -> None:
    text = PageToken(listing, place).text()
    assert PageToken.read(text, listing) == PageToken(listing, place)
    assert text.replace("-", "").replace("_", "").isalnum(), "it needs no escape in a query"
    with pytest.raises(PageTokenError, match="none of this listing; begin again without one"):
        PageToken.read(text, listing + "x")


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode())))
def test_whatever_else_is_sent_is_refused(text: str) -> None:
    with pytest.raises(PageTokenError):
        PageToken.read(text, "l1 boot")


@pytest.mark.parametrize("data", [b'["l1 boot"]', b'["l1 boot",null]', b'["l1 boot",1.5]', b"[" * 5000, b'{"a":1}'])
def test_a_token_of_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(PageTokenError):
        PageToken.read(base64.urlsafe_b64encode(data).decode(), "l1 boot")
