"""Header pages of many slots, of which some cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import ObjectHeader, inspect
from lmcache_object_slots.medium import SlotMedium


async def headers_at(medium: SlotMedium, places: Sequence[tuple[bytes, int]]) -> list[ObjectHeader]:
    """The headers of these objects (id and slot), as far as a header page says that one is there: others have gone
    meanwhile, or cannot be read.  Raises OSError where none can be read."""
    pages = await pages_or_errors(medium, [slot for _, slot in places])
    errors = [page for page in pages.values() if isinstance(page, OSError)]
    if errors and len(errors) == len(pages):
        raise errors[0]
    checked = {slot: inspect(page) for slot, page in pages.items() if isinstance(page, bytes)}
    headers = {slot: header for slot, header in checked.items() if isinstance(header, ObjectHeader)}
    return [headers[slot] for object_id, slot in places if slot in headers and headers[slot].key.object_id == object_id]


async def pages_or_errors(medium: SlotMedium, slots: Sequence[int]) -> dict[int, bytes | OSError]:
    """The header page of each of these slots, or why it cannot be read.  On the loop of the medium."""
    try:
        return dict(zip(slots, await medium.read_headers(slots), strict=True))
    except OSError:
        return {slot: await _page_or_error(medium, slot) for slot in slots}


async def _page_or_error(medium: SlotMedium, slot: int) -> bytes | OSError:
    try:
        (page,) = await medium.read_headers([slot])
    except OSError as error:
        return error
    return page
