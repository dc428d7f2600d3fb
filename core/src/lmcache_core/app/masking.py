"""Hides secrets in whatever is shown of settings: `/config`, `/status`, and the environment of programs beside the server.

Three nets, one behind the other.  Types: a field of a settings model that is a `SecretStr`, or says
`json_schema_extra={"secret": True}`.  Names: keys that sound like a secret, wherever they stand in nested values.
Places: passwords in URLs, connection strings, private keys.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin
from urllib.parse import quote, quote_plus

from pydantic import BaseModel, SecretBytes, SecretStr

from lmcache_core.contracts.settings import is_secret

MASK: Final = "**********"

_SECRET_WORDS: Final = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "secrets",
    "token",
    "credential",
    "credentials",
)
"""Wherever they stand in a name."""
_SECRET_ENDS: Final = ("key", "pass", "auth", "authorization", "bearer", "cookie", "signature", "sig", "sas", "dsn")
_SECRET_COMPOUNDS: Final = ("apikey", "accesskey", "secretkey", "accountkey", "privatekey")
_WHERE_WORDS: Final = ("file", "path", "dir", "directory", "folder")
"""A name that ends so says where a secret is, and that may be seen."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s\"'<>]+)")
_PAIR: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.-]*)=(?P<value>[^;&\s\"']+)")
_BEARER: Final = re.compile(r"\b(?P<scheme>[Bb]earer|[Bb]asic) +[A-Za-z0-9._~+/=-]{4,}")
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_LONG_SECRET: Final = 8
"""Shorter ones are looked for in sentences only: in names and in what programs read they would break more than they hide."""
_SHORTEST_SECRET: Final = 4
"""Shorter values are not looked for in texts: they would be found in every other word."""


def masked(value: Any, kind: Any = None) -> Any:
    """A copy of `value` for JSON in which no secret is left.  `kind`, a settings model or a type with some inside, says more
    about the keys of objects than their names do.  Models, paths and enumerations become what they are in JSON."""
    return _copied(value, kind, _Nets(lambda secret: _blanked(secret), masked_text))


def secrets_in(value: Any, kind: Any = None) -> set[str]:
    """The texts that `masked` hides because of a type, a name, or their place in a URL."""
    found: set[str] = set()

    def passwords(text: str) -> str:
        found.update(url["rest"].rpartition("@")[0].partition(":")[2] for url in _URL.finditer(text))
        return text

    _copied(value, kind, _Nets(lambda secret: found.update(_texts(secret)), passwords))
    return found


def masked_text(text: str) -> str:
    """The text without passwords in URLs, values of `name=value` pairs that sound like secrets, and private keys."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.dumps(masked(json.loads(text)))
        except (ValueError, RecursionError):
            pass  # it only looked like JSON
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _URL.sub(lambda found: found["scheme"] + _without_password(found["rest"]), text)
    text = _BEARER.sub(lambda found: f"{found['scheme']} {MASK}", text)
    return _PAIR.sub(lambda found: f"{found['name']}={MASK if sounds_secret(found['name']) else found['value']}", text)


def sounds_secret(name: str) -> bool:
    """Is a setting of this name probably a secret?"""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _WHERE_WORDS:
        return False
    compound = "".join(words)
    return (
        words[-1] in _SECRET_ENDS
        or any(word in _SECRET_WORDS for word in words)
        or any(part in compound for part in _SECRET_COMPOUNDS)
    )


class Hidden:
    """Known secrets, taken out of whatever text they got into.  Safe from any thread."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: tuple[str, ...] = ()
        self._lock = threading.Lock()  # guards changes of the one above
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """More of them.  As they stand in JSON, in tracebacks and in URLs, too, where some characters are escaped, and line by
        line, because the log indents them."""
        given = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        given |= {line for secret in given for line in secret.splitlines() if len(line) >= _LONG_SECRET}
        known = {spelling for secret in given for spelling in _spellings(secret)}
        with self._lock:
            self._known = tuple(sorted(known.union(self._known), key=len, reverse=True))

    def text(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASK)
        return text

    def data(self, data: bytes) -> bytes:
        """The same for text in UTF-8.  A password such as 1000 or `port` breaks no answer: in JSON numbers are left alone, and
        names but for long secrets; in other text, such as metrics, short secrets and those of digits alone."""
        if not any(secret.encode(errors="replace") in data for secret in self._known):
            return data
        try:
            return json.dumps(self._within(json.loads(data)), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            return self._without_long(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def _within(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self._without_long(name): self._within(inner) for name, inner in value.items()}
        return [self._within(inner) for inner in value] if isinstance(value, list) else value

    def _without_long(self, text: str) -> str:
        for secret in self._known:
            if len(secret) >= _LONG_SECRET and not secret.isdigit():
                text = text.replace(secret, MASK)
        return text


def _spellings(secret: str) -> set[str]:
    in_url = secret.encode(errors="surrogatepass")
    return {
        secret,
        repr(secret)[1:-1],
        *(json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)),
        quote(in_url),
        quote(in_url, safe=""),
        quote_plus(in_url),
    }


class _Nets(NamedTuple):
    """What becomes of a secret, and of any other text."""

    secret: Callable[[Any], Any]
    text: Callable[[str], str]


def _copied(value: Any, kind: Any, nets: _Nets) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr() | SecretBytes() | bytes():  # no setting is bytes unless it is a key
            return nets.secret(value)
        case BaseModel():
            return _copied(_fields(value), type(value), nets)
        case Mapping():
            return {str(key): _inside(str(key), inner, kind, nets) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            (inner_kind,) = _parts(kind)[:1] or (None,)
            return [_copied(inner, inner_kind, nets) for inner in value]
        case Enum():
            return _copied(value.value, None, nets)
        case _:
            return nets.text(str(value) if isinstance(value, str | PurePath) else repr(value))


def _inside(key: str, value: Any, kind: Any, nets: _Nets) -> Any:
    """One value of an object whose type is `kind`."""
    model = _model(kind)
    field = model.model_fields.get(key) if model else None
    if (field is not None and is_secret(field)) or _hides(key, value):
        return nets.secret(value)
    of_values = _parts(kind)[1:2]
    inner_kind = field.annotation if field else of_values[0] if model is None and of_values else None
    return _copied(value, inner_kind, nets)


def _model(kind: Any) -> type[BaseModel] | None:
    """The settings model that `kind` is, or may be."""
    options = (kind, *(get_args(kind) if get_origin(kind) not in (dict, list, tuple, set, frozenset) else ()))
    return next((each for each in options if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _parts(kind: Any) -> tuple[Any, ...]:
    """The types inside of a container's, an optional one's too."""
    if get_origin(kind) in (dict, list, tuple, set, frozenset, Mapping):
        return get_args(kind)
    inner = [_parts(each) for each in get_args(kind) if each is not NoneType]
    return next(filter(None, inner), ())


def _hides(key: str, value: Any) -> bool:
    """A number or a switch beside a name such as `token_seconds` is none; one called `password` is."""
    if value is None or isinstance(value, bool) or not sounds_secret(key):
        return False
    return not isinstance(value, int | float) or _WORD.findall(key)[-1].lower() in (*_SECRET_WORDS, *_SECRET_ENDS)


def _fields(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields}


def _blanked(value: Any) -> Any:
    """All texts and numbers of it hidden, its shape kept."""
    if isinstance(value, BaseModel):
        value = _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _blanked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_blanked(inner) for inner in value]
    return value if value is None or isinstance(value, bool) else MASK


def _texts(value: Any) -> list[str]:
    if isinstance(value, SecretStr | SecretBytes):
        value = value.get_secret_value()
    if isinstance(value, BaseModel):
        value = _fields(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return [text for inner in value for text in _texts(inner)]
    if value is None or isinstance(value, bool):
        return []
    return [value.decode(errors="replace") if isinstance(value, bytes) else str(value)]


def _without_password(rest: str) -> str:
    """The part of a URL after its scheme, without its user and password."""
    host, slash, path = rest.partition("/")
    if "@" in host:
        return f"{MASK}@{host.rpartition('@')[2]}{slash}{path}"
    port = host.rpartition(":")[2]
    if "@" in path and ":" in host and not port.isdigit() and not host.startswith("["):  # a slash in the password
        return f"{MASK}@{rest.rpartition('@')[2]}"
    return rest
