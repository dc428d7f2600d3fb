"""Objects as values of a server: written once, read into borrowed memory, judged by their header page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from lmcache_core import HEADER_BYTES, Check, ObjectHeader, Outcome, ProtocolError, inspect
from lmcache_l2_redis.client import Client
from lmcache_l2_redis.errors import ReplyError, WrongTypeError
from lmcache_l2_redis.pieces import Piece, further_pieces
from lmcache_l2_redis.replies import Argument, Passed, command, unseen
from lmcache_object_remote import OtherVersions, object_name

UNFINISHED_SECONDS: Final = 3600
"""How long pieces of an object that never became whole stay."""
PIECES_MAX: Final = 4096
"""More than that are not believed to belong to one object."""


class Standing(NamedTuple):
    """The state of the value of a name.  DONE (whole, by its header and lengths), DAMAGED, FOREIGN or MISSING."""

    outcome: Outcome
    size: int = 0
    """With its further pieces."""
    pieces: tuple[Piece, ...] = ()
    header: ObjectHeader | None = None


_MISSING: Final = Standing(Outcome.MISSING)
_FOREIGN: Final = Standing(Outcome.FOREIGN)


class Values:
    """Belongs to one event loop.  What is raised is what `Client.ask` raises."""

    def __init__(
        self, client: Client, prefix: str, others: OtherVersions, *, piece_bytes: int, ttl_seconds: int | None
    ) -> None:
        self._others: Final = others
        self._client: Final = client
        self._prefix: Final = prefix
        self._piece_bytes: Final = piece_bytes
        self._ttl: Final = ttl_seconds

    async def put(self, name: bytes, value: memoryview, on_new: Callable[[], None]) -> bool:
        """False: there is a value already, and it is kept.  `on_new` is called as soon as it is known that it is new, since
        a count that runs meanwhile sees it from then on, and what is left to do may fail."""
        options: tuple[Argument, ...] = ("NX",) if self._ttl is None else ("NX", "EX", self._ttl)
        if len(value) <= self._piece_bytes:
            is_new = await self._client.set_value(name, value, *options)
            if is_new:
                on_new()
            return is_new
        # Longer than the object lives, so that it is never there without them.
        seconds = UNFINISHED_SECONDS + (self._ttl or 0)
        pieces = tuple(further_pieces(name, value[:HEADER_BYTES], len(value), self._piece_bytes))
        is_new = False
        try:
            for piece in pieces:
                await self._client.set_value(piece.name, value[piece.start : piece.end], "EX", seconds)
            is_new = await self._client.set_value(name, value[: self._piece_bytes], *options)
        except ReplyError:
            if not await self._is_of(name, value[:HEADER_BYTES]):
                await self._remove_pieces(pieces)
            raise
        if is_new:
            on_new()
        elif not await self._is_of(name, value[:HEADER_BYTES]):
            await self._remove_pieces(pieces)
        if self._ttl is None:
            await self._each(pieces, "PERSIST")
        return is_new

    async def get(self, name: bytes, into: memoryview, passed: Passed, *, at_most: bool) -> Outcome:
        """DONE: header and payload stand in `into`, were shown to `passed`, and their length is right; the digests are the
        caller's to compare."""
        try:
            length = await self._client.get_into(name, into, passed)
        except WrongTypeError:
            return Outcome.FOREIGN
        if length is None:
            return Outcome.MISSING
        if length == len(into):
            return Outcome.DONE
        if length > len(into):
            standing = await self.standing(name)
            return Outcome.DAMAGED if standing.outcome is Outcome.DONE else standing.outcome
        header = self._judge(name, into[: min(length, HEADER_BYTES)])
        if isinstance(header, Outcome):
            return header
        total = HEADER_BYTES + header.stored_bytes
        if total == length and at_most:
            return Outcome.DONE
        if total < length or total > len(into) or (total != len(into) and not at_most):
            return Outcome.DAMAGED
        return await self._get_pieces(name, into[:total], length, passed)

    async def read(self, name: bytes) -> memoryview | None:
        """The whole object, by its header and lengths, in memory of its own; None: there is none."""
        standing = await self.standing(name)
        if standing.outcome is not Outcome.DONE or standing.header is None:
            return None
        whole = memoryview(bytearray(HEADER_BYTES + standing.header.stored_bytes))
        return whole if await self.get(name, whole, unseen, at_most=False) is Outcome.DONE else None

    async def standing(self, name: bytes) -> Standing:
        try:
            exists, length, page = await self._client.ask(
                name, command("EXISTS", name), command("STRLEN", name), command("GETRANGE", name, 0, HEADER_BYTES - 1)
            )
        except WrongTypeError:
            return _FOREIGN
        if not isinstance(length, int) or not isinstance(page, bytes):
            raise ProtocolError(f"STRLEN and GETRANGE are answered by {length!r} and {type(page).__name__}")
        if not exists:
            return _MISSING
        header = self._judge(name, page)
        if isinstance(header, Outcome):
            return Standing(header, length)
        if object_name(self._prefix, header.key).encode() != name:
            return Standing(Outcome.FOREIGN, length, header=header)
        total = HEADER_BYTES + header.stored_bytes
        if total == length:
            return Standing(Outcome.DONE, length, header=header)
        if total < length or -(-total // length) > PIECES_MAX:
            return Standing(Outcome.DAMAGED, length, header=header)
        pieces = tuple(further_pieces(name, page, total, length))
        lengths = [reply if isinstance(reply, int) else 0 for reply in await self._each(pieces, "STRLEN")]
        is_whole = all(found == piece.end - piece.start for found, piece in zip(lengths, pieces, strict=True))
        return Standing(Outcome.DONE if is_whole else Outcome.DAMAGED, length + sum(lengths), pieces, header)

    async def remove(self, name: bytes, on_gone: Callable[[int], None]) -> Outcome:
        """DONE, or why nothing went: MISSING or FOREIGN.  `on_gone` is called with how many bytes went as soon as lookups no
        longer find it any more."""
        standing = await self.standing(name)
        if standing.outcome in (Outcome.MISSING, Outcome.FOREIGN):
            return standing.outcome
        (removed,) = await self._client.ask(name, command("UNLINK", name))
        if removed:
            on_gone(standing.size)
        await self._remove_pieces(standing.pieces)
        return Outcome.DONE if removed else Outcome.MISSING

    def _judge(self, name: bytes, page: bytes | memoryview) -> ObjectHeader | Outcome:
        if not len(page):
            return Outcome.DAMAGED  # cut to nothing, under a name that is one of ours
        header = inspect(page)
        return self._others.outcome_of(header, name) if isinstance(header, Check) else header

    async def _get_pieces(self, name: bytes, into: memoryview, first_bytes: int, passed: Passed) -> Outcome:
        """All but the first, which is the value itself."""
        for piece in further_pieces(name, into[:HEADER_BYTES], len(into), first_bytes):
            place = into[piece.start : piece.end]
            if await self._client.get_into(piece.name, place, passed) != len(place):
                # Who deletes an object begins with its first piece: is it still this one's?
                return Outcome.DAMAGED if await self._is_of(name, into[:HEADER_BYTES]) else Outcome.MISSING
        return Outcome.DONE

    async def _is_of(self, name: bytes, page: memoryview) -> bool:
        """Is this very object there, by its header page?  An answer that was lost may have said that it was stored."""
        try:
            (found,) = await self._client.ask(name, command("GETRANGE", name, 0, HEADER_BYTES - 1))
        except WrongTypeError:
            return False
        return found == bytes(page)

    async def _remove_pieces(self, pieces: Sequence[Piece]) -> None:
        with suppress(ReplyError):  # they go by themselves, or when an owner cleans up
            await self._each(pieces, "UNLINK")

    async def _each(self, pieces: Sequence[Piece], verb: str) -> list[object]:
        replies = await asyncio.gather(*(self._client.ask(piece.name, command(verb, piece.name)) for piece in pieces))
        return [reply for (reply,) in replies]
