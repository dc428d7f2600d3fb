from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.shown_salt import shown_salt


@given(st.text(min_size=1))
def test_a_hashed_salt_says_nothing_of_itself(salt: str) -> None:
    shown = shown_salt(salt, "hashed")
    assert re.fullmatch("[0-9a-f]{16}", shown)
    assert shown == shown_salt(salt, "hashed") != shown_salt(f"{salt}.", "hashed")


def test_the_empty_salt_and_a_plain_one_stay() -> None:
    assert shown_salt("", "hashed") == ""
    assert shown_salt("tenant", "plain") == "tenant"
