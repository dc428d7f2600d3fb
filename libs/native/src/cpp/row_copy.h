// Copies of rows of bytes that lie at even distances on both sides.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmcache {

constexpr std::uint64_t CACHE_LINE = 64;

// `slots` times `heads` rows of `bytes` each.  A stride says how far the next one lies, in bytes.
struct Rows {
    std::uint64_t slots = 1;
    std::uint64_t heads = 1;
    std::uint64_t bytes = 0;
    std::uint64_t to_slot = 0;
    std::uint64_t to_head = 0;
    std::uint64_t from_slot = 0;
    std::uint64_t from_head = 0;
    // Where what is read next begins, if it is worth fetching while this is copied.
    const std::byte* ahead = nullptr;

    // Whether rows are whole cache lines of what is written.
    bool whole_lines(const std::byte* to) const {
        return ((reinterpret_cast<std::uint64_t>(to) | bytes | to_slot | to_head) & (CACHE_LINE - 1)) == 0;
    }
};

using RowCopy = void (*)(std::byte* to, const std::byte* from, const Rows& rows);

// Leaves what it wrote in the caches.  For any rows.
void copy_cached(std::byte* to, const std::byte* from, const Rows& rows);

// Writes past the caches where this processor can, so that a line is not read before it is overwritten.  For whole lines
// only; others see them in order after `drain_streams`.
RowCopy streaming_copy();

// Waits, on the thread that made them, for streaming writes.
void drain_streams();

}  // namespace lmcache
