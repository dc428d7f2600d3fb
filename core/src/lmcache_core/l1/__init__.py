"""L1, the memory cache: arena, slots, index of keys, leases.  `cache.L1Cache` composes them."""
