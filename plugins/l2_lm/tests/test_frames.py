"""What goes over the wire."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import ProtocolError
from lmcache_devkit.borrowed_memory import SPACE, object_key
from lmcache_l2_lm.frames import (
    ANSWER_BYTES,
    KEY_BYTES,
    LENGTH_MAX,
    REQUEST_BYTES,
    Answer,
    Form,
    Request,
    Verb,
    is_key,
    key_of,
    pack_answer,
    pack_request,
    parse_answer,
    parse_request,
)

INTEGERS: Final = st.integers(-(2**31), LENGTH_MAX)
LENGTHS: Final = st.integers(0, LENGTH_MAX)
FORMS: Final = st.builds(Form, INTEGERS, INTEGERS, st.tuples(INTEGERS, INTEGERS, INTEGERS, INTEGERS))
KEYS: Final = st.from_regex(
    rb"[a-zA-Z/.@-]{1,60}@[0-9]{1,3}@[0-9]{1,3}@-?[0-9a-f]{1,40}@[a-z0-9_]{1,12}", fullmatch=True
)


def name_of(model: str) -> bytes:
    return key_of(object_key(1, replace(SPACE, model_name=model)))


def test_a_request_is_nine_native_integers_and_a_key_of_150_bytes() -> None:
    packed = pack_request(Request(Verb.PUT, b"m@1@0@ab@uint8", 7, Form(5, 6, (7, 0, 0, 0))))
    assert packed == struct.pack("9i", 1, 7, 5, 6, 0, 7, 0, 0, 0) + b"m@1@0@ab@uint8" + b" " * 136
    assert len(packed) == REQUEST_BYTES == 186


def test_an_answer_is_nine_native_integers_and_the_location_is_the_last() -> None:
    assert pack_answer(Answer(True, 384, Form(1, 3, (2, 3, 4, 8)))) == struct.pack("9i", 200, 384, 1, 3, 2, 3, 4, 8, 0)
    assert pack_answer(Answer(False)) == struct.pack("9i", 400, 0, 1, 2, 0, 0, 0, 0, 0)


@given(st.sampled_from(Verb), KEYS, LENGTHS, FORMS, INTEGERS)
def test_a_request_is_read_as_it_was_written(verb: Verb, key: bytes, length: int, form: Form, location: int) -> None:
    request = Request(verb, key, length, form, location)
    assert parse_request(pack_request(request)) == request


@given(LENGTHS, FORMS)
def test_an_answer_is_read_as_it_was_written(length: int, form: Form) -> None:
    for answer in (Answer(True, length, form), Answer(False, 0, form)):
        assert parse_answer(pack_answer(answer)) == answer


@given(st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        request = parse_request(data)
    except ProtocolError:
        return
    assert request.length >= 0
    assert request.verb is Verb.HEALTH or is_key(request.key)


@given(st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    try:
        answer = parse_answer(data)
    except ProtocolError:
        return
    assert answer.length == 0 or answer.found


@pytest.mark.parametrize("verb", [0, 4, 6, -1, 2**31 - 1])
def test_a_command_that_is_not_one_is_refused(verb: int) -> None:
    with pytest.raises(ProtocolError, match="command"):
        parse_request(struct.pack("9i150s", verb, 0, 1, 2, 0, 0, 0, 0, 0, b"m@1@0@ab@uint8".ljust(150)))


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="length of -1"):
        parse_request(struct.pack("9i150s", 1, -1, 1, 2, 0, 0, 0, 0, 0, b"m@1@0@ab@uint8".ljust(150)))


@pytest.mark.parametrize(
    "key",
    [b"", b" ", b"m", b"m@1@0@ab", b"@1@0@ab@uint8", b"m@x@0@ab@uint8", b"m@1@0@zz@uint8", b"m@1@0@ab@", b"m\n@1@0@ab@uint8",
     b"m@1@0@ab@uint8\0\0", b"\xff@1@0@ab@uint8", b"m@1@0@ab@uint8@tag\x7f"],
)  # fmt: skip
def test_what_is_not_a_key_is_refused(key: bytes) -> None:
    assert not is_key(key)
    with pytest.raises(ProtocolError, match="key"):
        parse_request(struct.pack("9i150s", 3, 0, 1, 2, 0, 0, 0, 0, 0, key.ljust(150)))


@pytest.mark.parametrize("key", [b"m@1@0@-ab@bfloat16", b"a b@c@2@1@00@uint8@user%x@2", "modèle@1@0@ab@uint8".encode()])
def test_keys_of_other_clients_are_keys(key: bytes) -> None:
    assert is_key(key)


def test_a_key_that_is_too_long_is_never_cut() -> None:
    with pytest.raises(ValueError, match="151 bytes"):
        pack_request(Request(Verb.GET, b"m" * 151))


@given(st.text(max_size=300))
def test_the_name_of_an_object_is_a_key_whatever_the_model_is_called(model: str) -> None:
    name = name_of(model)
    assert is_key(name)
    assert len(name) <= KEY_BYTES
    object_id = object_key(1, replace(SPACE, model_name=model)).object_id
    assert name.endswith(f"@{object_id.hex()}@uint8".encode())
    parse_request(pack_request(Request(Verb.GET, name)))


def test_two_long_models_have_two_names_and_a_short_one_is_written_out() -> None:
    long = "org/" + "m" * 200
    assert name_of(long).split(b"@")[0] != name_of(long + "x").split(b"@")[0]
    assert name_of("org/model##0123456789abcdef").startswith(b"org/model##0123456789abcdef@")
