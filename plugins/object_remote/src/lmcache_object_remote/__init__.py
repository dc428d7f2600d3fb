"""What L2 adapters of network backends share: what is known of the objects there, and how much there is.

known = KnownObjects(context.clock, entries_max=1_000_000, present_seconds=60, absent_seconds=1)
tally = Tally()

if (sight := known.look(key)) is None:                 # nobody knows: ask the backend
    size = await client.size_of(object_name(prefix, key))
    known.absent(key) if size is None else known.present(key, size)

with tally.counting() as count:                        # at the start, and from time to time where others change it
    async for name, size in client.list(prefix):
        if (object_id := object_id_of(name)) is not None:
            count.saw(object_id, size)
    count.finish()
"""

from lmcache_object_remote.known_objects import ABSENT, KnownObjects, Sight
from lmcache_object_remote.names import object_id_of, object_name
from lmcache_object_remote.tally import Count, Tally

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "Count",
    "KnownObjects",
    "Sight",
    "Tally",
    "object_id_of",
    "object_name",
]
