#include "row_copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lmcache {

// The loops go slot by slot whichever side is strided: the other then ascends, and up to some dozens of strided streams cost
// the memory less than one that jumps.

void copy_cached(std::byte* to, const std::byte* from, const Rows& rows) {
    for (std::uint64_t slot = 0; slot < rows.slots; ++slot) {
        std::byte* target = to + slot * rows.to_slot;
        const std::byte* source = from + slot * rows.from_slot;
        for (std::uint64_t head = 0; head < rows.heads; ++head) {
            std::memcpy(target + head * rows.to_head, source + head * rows.from_head, rows.bytes);
        }
    }
}

#if defined(__x86_64__)

namespace {

void stream_sse2(std::byte* to, const std::byte* from, const Rows& rows) {
    const std::byte* ahead = rows.ahead;
    for (std::uint64_t slot = 0; slot < rows.slots; ++slot) {
        for (std::uint64_t head = 0; head < rows.heads; ++head) {
            std::byte* target = to + slot * rows.to_slot + head * rows.to_head;
            const std::byte* source = from + slot * rows.from_slot + head * rows.from_head;
            for (std::uint64_t at = 0; at < rows.bytes; at += CACHE_LINE) {
                if (ahead != nullptr) {
                    _mm_prefetch(ahead, _MM_HINT_T0);
                    ahead += CACHE_LINE;
                }
                const auto* in = reinterpret_cast<const __m128i*>(source + at);
                auto* out = reinterpret_cast<__m128i*>(target + at);
                const __m128i first = _mm_loadu_si128(in), second = _mm_loadu_si128(in + 1);
                const __m128i third = _mm_loadu_si128(in + 2), fourth = _mm_loadu_si128(in + 3);
                _mm_stream_si128(out, first);
                _mm_stream_si128(out + 1, second);
                _mm_stream_si128(out + 2, third);
                _mm_stream_si128(out + 3, fourth);
            }
        }
    }
}

// Wider stores still (AVX-512) bring nothing: memory is the limit.
[[gnu::target("avx2")]] void stream_avx2(std::byte* to, const std::byte* from, const Rows& rows) {
    const std::byte* ahead = rows.ahead;
    for (std::uint64_t slot = 0; slot < rows.slots; ++slot) {
        for (std::uint64_t head = 0; head < rows.heads; ++head) {
            std::byte* target = to + slot * rows.to_slot + head * rows.to_head;
            const std::byte* source = from + slot * rows.from_slot + head * rows.from_head;
            for (std::uint64_t at = 0; at < rows.bytes; at += CACHE_LINE) {
                if (ahead != nullptr) {
                    _mm_prefetch(ahead, _MM_HINT_T0);
                    ahead += CACHE_LINE;
                }
                const auto* in = reinterpret_cast<const __m256i*>(source + at);
                auto* out = reinterpret_cast<__m256i*>(target + at);
                const __m256i first = _mm256_loadu_si256(in), second = _mm256_loadu_si256(in + 1);
                _mm256_stream_si256(out, first);
                _mm256_stream_si256(out + 1, second);
            }
        }
    }
}

}  // namespace

RowCopy streaming_copy() { return __builtin_cpu_supports("avx2") ? stream_avx2 : stream_sse2; }

void drain_streams() { _mm_sfence(); }

#else

RowCopy streaming_copy() { return copy_cached; }

void drain_streams() {}

#endif

}  // namespace lmcache
