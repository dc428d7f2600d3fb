#include "memory_copy.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "../row_copy.h"
#include "digest.h"
#include "fault_gate.h"

namespace lmcache::io {

namespace {

// A block is copied and hashed while it is in a core's own cache; one that is streamed, in the smallest one.
constexpr std::uint64_t BLOCK = std::uint64_t{128} << 10;
constexpr std::uint64_t STREAMED_BLOCK = std::uint64_t{4} << 10;
// From here on the caches are of no use to what is written.
constexpr std::uint64_t STREAMED_BYTES = std::uint64_t{512} << 10;

class Copier {
public:
    explicit Copier(const Operation& operation) : operation_(operation) {
        if (operation.length >= STREAMED_BYTES) streaming_ = streaming_copy();
    }

    // False where memory vanished.
    bool copy(Range range) const {
        return guarded([this, range] { write(range, operation_.source + range.begin); });
    }

    // The digest is that of what is written, also where another process changes the source meanwhile: the source is read
    // once.  What is streamed to the target cannot be read back at no cost, and goes through a block in the cache.
    bool copy_and_hash(Range range, Digest& digest) {
        const bool streams = streaming_ != copy_cached;
        const std::uint64_t block = streams ? STREAMED_BLOCK : BLOCK;
        return guarded([this, range, &digest, streams, block] {
            for (std::uint64_t at = range.begin; at < range.end; at += block) {
                const Range part{at, std::min(range.end, at + block)};
                const std::byte* from = operation_.source + at;
                if (streams) from = static_cast<std::byte*>(std::memcpy(block_.data(), from, part.length()));
                write(part, from);
                digest.add(streams ? from : operation_.memory + at, part.length());
            }
        });
    }

private:
    void write(Range range, const std::byte* from) const {
        std::byte* to = operation_.memory + range.begin;
        // Up to the first whole cache line of the target, then whole lines, then what is left.
        const std::uint64_t before = std::min(range.length(), -reinterpret_cast<std::uintptr_t>(to) % 64);
        const std::uint64_t lines = (range.length() - before) & ~std::uint64_t{63};
        const std::uint64_t after = range.length() - before - lines;
        std::memcpy(to, from, before);
        if (lines > 0) streaming_(to + before, from + before, Rows{.bytes = lines});
        std::memcpy(to + before + lines, from + before + lines, after);
    }

    const Operation& operation_;
    RowCopy streaming_ = copy_cached;
    alignas(64) std::array<std::byte, STREAMED_BLOCK> block_;
};

}  // namespace

Outcome copy_memory(const Operation& operation) {
    fault_guard().install();
    Copier copier(operation);
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
