"""Salts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.model.names import EMPTY_SALT_WORD, SALT_CHARS_MAX, SALT_FORBIDDEN, parse_salt, salt_text


@given(st.text(max_size=SALT_CHARS_MAX + 3))
def test_what_is_written_is_read_back_or_refused(salt: str) -> None:
    is_salt = len(salt) <= SALT_CHARS_MAX and not set(salt) & set(SALT_FORBIDDEN)
    if is_salt and salt != EMPTY_SALT_WORD:
        assert parse_salt(salt_text(salt)) == salt
    elif not is_salt:
        with pytest.raises(ValueError, match="a cache salt "):
            parse_salt(salt)


def test_the_empty_salt_has_a_word_of_its_own() -> None:
    assert (salt_text(""), parse_salt("_default")) == ("_default", "")
    with pytest.raises(ValueError, match="the empty salt is written _default"):
        parse_salt("")


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0b", "x" * 129])
def test_names_that_salts_cannot_have(salt: str) -> None:
    with pytest.raises(ValueError, match="a cache salt "):
        parse_salt(salt)
