#include "memory_copy.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../row_copy.h"
#include "digest.h"
#include "fault_gate.h"

namespace lmcache::io {

namespace {

// A block is read, copied and hashed while it is in a core's own cache.
constexpr std::uint64_t BLOCK = std::uint64_t{128} << 10;
// From here on the caches are of no use to what is written.
constexpr std::uint64_t STREAMED_BYTES = std::uint64_t{512} << 10;

class Copier {
public:
    explicit Copier(const Operation& operation) : operation_(operation) {
        if (operation.length >= STREAMED_BYTES) streaming_ = streaming_copy();
    }

    // False where memory vanished.
    bool copy(Range range) const {
        std::byte* to = operation_.memory + range.begin;
        const std::byte* from = operation_.source + range.begin;
        const bool whole = guarded([&] {
            // Up to the first whole cache line of the target, then whole lines, then what is left.
            const std::uint64_t before = std::min(range.length(), -reinterpret_cast<std::uintptr_t>(to) % 64);
            const std::uint64_t lines = (range.length() - before) & ~std::uint64_t{63};
            const std::uint64_t after = range.length() - before - lines;
            std::memcpy(to, from, before);
            if (lines > 0) streaming_(to + before, from + before, Rows{.bytes = lines});
            std::memcpy(to + before + lines, from + before + lines, after);
        });
        return whole;
    }

    bool copy_and_hash(Range range, Digest& digest) const {
        for (std::uint64_t at = range.begin; at < range.end;) {
            const std::uint64_t end = std::min(range.end, at + BLOCK);
            if (!copy({at, end}) || !digest.update(operation_.source + at, end - at)) return false;
            at = end;
        }
        return true;
    }

private:
    const Operation& operation_;
    RowCopy streaming_ = copy_cached;
};

}  // namespace

Outcome copy_memory(const Operation& operation) {
    fault_guard().install();
    const Copier copier(operation);
    Digest digest;
    const std::uint64_t head = operation.head_bytes;
    const std::uint64_t from = operation.digest_from.value_or(operation.length);
    const std::uint64_t silent_end = std::max(head, from);
    bool whole = copier.copy({head, silent_end});
    // What is hashed of the head, and before the rest is: it is copied later, from where it is read now.
    if (whole && from < head) whole = digest.update(operation.source + from, head - from);
    whole = whole && copier.copy_and_hash({silent_end, operation.length}, digest);
    drain_streams();
    if (whole && head > 0) whole = copier.copy({0, head});
    drain_streams();
    if (!whole) return {.result = -EFAULT};
    Outcome outcome{.result = static_cast<std::int64_t>(operation.length)};
    if (operation.digest_from) outcome.digest = digest.finish();
    return outcome;
}

}  // namespace lmcache::io
