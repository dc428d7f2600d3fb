"""No secret is left, and what is none is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretBytes, SecretStr

from lmcache_core.app.log_output import hide_in_logs
from lmcache_core.app.masking import MASK, Hidden, masked, masked_text, secrets_in, sounds_secret

S = "hunter2-hunter2"


class Inner(BaseModel):
    word: SecretStr = SecretStr(S)
    plain: str = "plain"


class Model(BaseModel):
    typed: SecretStr = SecretStr(S)
    optional: SecretStr | None = SecretStr(S)
    several: list[SecretStr] = [SecretStr(S)]
    data: SecretBytes = SecretBytes(S.encode())
    marked: str = Field(default=S, json_schema_extra={"secret": True})
    inner: Inner = Inner()
    inners: list[Inner] = [Inner()]
    by_name: dict[str, Inner] = {"a": Inner()}
    maybe: Inner | None = None
    path: Path = Path("/etc/x")


def test_a_model_shows_none_of_its_secrets() -> None:
    shown = masked(Model())
    assert S not in json.dumps(shown)
    assert shown["path"] == "/etc/x"
    assert shown["inner"]["plain"] == "plain"
    assert secrets_in(Model()) == {S}


def test_values_that_are_not_yet_a_model_are_read_by_it() -> None:
    """As given in `--l2-adapter`, before validation."""
    given_values = {
        "typed": S,
        "optional": S,
        "several": [S, S],
        "marked": {"deep": [S]},
        "inner": {"word": S, "plain": "plain"},
        "inners": [{"word": S}],
        "by_name": {"a": {"word": S}},
        "maybe": {"word": S},
        "unknown": "seen",
    }
    shown = masked(given_values, Model)
    assert S not in json.dumps(shown)
    assert shown["inner"]["plain"] == "plain"
    assert shown["unknown"] == "seen"
    assert shown["marked"] == {"deep": [MASK]}
    assert secrets_in(given_values, Model) == {S}


@pytest.mark.parametrize(
    "name",
    [
        "password", "PASSWORD", "db_password", "userPassword", "passwd", "passphrase", "secret", "client_secret", "secretKey",
        "secret_access_key", "aws_secret_access_key", "access_key", "access_key_id", "accessKey", "api_key", "apikey",
        "API-Key", "private_key", "account_key", "storage.key", "key", "token", "auth_token", "sessionToken", "token_value",
        "credentials", "Authorization", "proxy-authorization", "cookie", "signature", "sas", "sig", "dsn",
    ],
)  # fmt: skip
def test_names_that_sound_like_secrets(name: str) -> None:
    assert sounds_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "http_token_file", "key_path", "credentials_file", "secret_dir", "chunk_tokens", "max_tokens", "keys", "key_prefix",
        "monkey", "author", "passive", "bypass_mode", "compass", "tokenizer", "design", "host", "", "_", "auth_method",
    ],
)  # fmt: skip
def test_names_that_do_not(name: str) -> None:
    assert not sounds_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"redis://user:{S}@host:6379/0", f"redis://{MASK}@host:6379/0"),
        (f"redis://:{S}@host", f"redis://{MASK}@host"),
        (f"https://{S}@host/path", f"https://{MASK}@host/path"),
        (f"mongodb://a:{S}@h1,h2/x and s3://b", f"mongodb://{MASK}@h1,h2/x and s3://b"),
        (f"redis://:ab/{S}@host/1", f"redis://{MASK}@host/1"),
        (f"https://h/x?sig={S}&v=1", f"https://h/x?sig={MASK}&v=1"),
        (f"AccountName=a;AccountKey={S}==;Suffix=b", f"AccountName=a;AccountKey={MASK};Suffix=b"),
        (f"sent Authorization: Bearer {S}", f"sent Authorization: Bearer {MASK}"),
        (f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----", MASK),
        (f'{{"api_key": "{S}", "a": 1}}', f'{{"api_key": "{MASK}", "a": 1}}'),
        ("http://host:8080/path@v1", "http://host:8080/path@v1"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("a=b", "a=b"),
        ("{not json", "{not json"),
        ("user@host", "user@host"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert masked_text(text) == shown


def test_numbers_and_switches_beside_such_names_are_shown() -> None:
    values = {"token_seconds": 5, "use_token": True, "secret_max_bytes": 3, "password": 1234, "token": None}
    assert masked(values) == {**values, "password": MASK}


keys = st.sampled_from(["password", "host", "api_key", "nested", "token", "list"])
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(tree=trees)
def test_the_shape_stays_and_masking_again_changes_nothing(tree: Any) -> None:
    shown = masked(tree)
    json.dumps(shown)
    assert masked(shown) == shown

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        return [shape(inner) for inner in value] if isinstance(value, list) else None

    assert shape(shown) == shape(tree)


@given(secret=st.text(min_size=4, max_size=30), before=st.text(max_size=10), after=st.text(max_size=10))
def test_a_known_secret_is_found_as_text_and_in_json(secret: str, before: str, after: str) -> None:
    hidden = Hidden([secret])
    message = before + secret + after
    shown = hidden.text(message)
    assert MASK in shown
    for ascii_only in (True, False):
        said = json.dumps({"error": message}, ensure_ascii=ascii_only).encode(errors="surrogatepass")
        assert MASK in json.loads(hidden.data(said))["error"]


def test_what_is_learned_later_counts_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("test.of.masking")
    logger.addHandler(handler)
    logger.propagate = False
    hidden = Hidden()
    hide_in_logs(hidden, [handler])
    hidden.learn([S])
    try:
        raise RuntimeError(f"refused {S}")
    except RuntimeError:
        logger.exception("failed with %s", S)
    said = capsys.readouterr().err
    assert said.startswith(f"ERROR failed with {MASK}\nTraceback")
    assert f"RuntimeError: refused {MASK}" in said
    assert S not in said


def test_an_answer_stays_json_whatever_the_secret_is() -> None:
    hidden = Hidden(["1000", "port", "long-enough"])
    said = json.dumps({"port": 1000, "why": "no port 1000", "long-enough": ["x1000y", True, None]}).encode()
    assert json.loads(hidden.data(said)) == {
        "port": 1000,
        "why": f"no {MASK} {MASK}",
        MASK: [f"x{MASK}y", True, None],
    }
    assert hidden.data(b"port \xff long-enough") == b"port \xff " + MASK.encode()
    untouched = b'{"a": 1}'
    assert hidden.data(untouched) is untouched


def test_metrics_stay_metrics_whatever_the_secret_is() -> None:
    exposition = b'lmcache_mp_l2_usage_bytes{adapter="redis"} 12345678\n'
    assert Hidden(["lmcache", "redis", "12345678", "1234"]).data(exposition) == exposition


def test_other_spellings_are_found_as_well() -> None:
    secret = 'it\'s "A/b"+é\\'
    hidden = Hidden([secret, "-----BEGIN KEY-----\nMIIEvQIBADAN\n-----END KEY-----"])
    for said in (f"{secret!r}", quote(secret), quote(secret, safe=""), urlencode({"a": secret}), "  MIIEvQIBADAN\n"):
        assert "b" not in hidden.text(said).replace(MASK, "")
        assert "MII" not in hidden.text(said)


def test_short_values_are_not_looked_for_everywhere() -> None:
    assert Hidden(["abc", ""]).text("abcdef") == "abcdef"
