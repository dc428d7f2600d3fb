// xxh3-128 of bytes that come in blocks, in order.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // the state as a member, instead of an allocation for each operation
#include <xxhash.h>

#include "operation.h"

namespace lmcache::io {

class Digest {
public:
    Digest();

    // False where the memory vanished under it.
    bool update(const std::byte* memory, std::uint64_t length);
    // The same where the caller guards.
    void add(const std::byte* memory, std::uint64_t length);
    // In canonical form: big-endian.
    DigestBytes finish() const;

private:
    XXH3_state_t state_;
};

}  // namespace lmcache::io
