#include "turn_rows.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A product that is not rounded before it is added would give other bits here than elsewhere: this file is compiled with
// -ffp-contract=off.

namespace lmcache {

namespace {

template <typename Bits> Bits bits_at(const std::byte* from) {
    Bits bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
}

template <typename Bits> void put(std::byte* to, Bits bits) { std::memcpy(to, &bits, sizeof bits); }

struct Float32 {
    static constexpr std::uint64_t bytes = 4;
    static float load(const std::byte* from) { return bits_at<float>(from); }
    static void store(std::byte* to, float value) { put(to, value); }
};

struct BFloat16 {
    static constexpr std::uint64_t bytes = 2;
    static float load(const std::byte* from) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits_at<std::uint16_t>(from)) << 16);
    }
    static void store(std::byte* to, float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        put(to, static_cast<std::uint16_t>(value == value ? rounded : (bits >> 16) | 0x40));
    }
};

struct Float16 {
    static constexpr std::uint64_t bytes = 2;
    static float load(const std::byte* from) {
        const std::uint32_t half = bits_at<std::uint16_t>(from);
        std::uint32_t bits = (half & 0x7FFF) << 13;
        const std::uint32_t exponent = bits & (0x7C00U << 13);
        bits += (127U - 15) << 23;
        if (exponent == 0x7C00U << 13) {  // infinite, or NaN
            bits += (128U - 16) << 23;
        } else if (exponent == 0) {  // zero, or below the normal numbers
            bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits + (1U << 23)) - std::bit_cast<float>(113U << 23));
        }
        return std::bit_cast<float>(bits | (half & 0x8000) << 16);
    }
    static void store(std::byte* to, float value) {
        const auto whole = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t sign = whole & 0x80000000U;
        std::uint32_t bits = whole ^ sign;
        if (bits >= (127U + 16) << 23) {  // too large, infinite, or NaN
            bits = bits > 255U << 23 ? 0x7E00 | ((bits >> 13) & 0x3FF) : 0x7C00;
        } else if (bits < 113U << 23) {  // below the normal numbers: the addition rounds
            constexpr std::uint32_t magic = (127U - 15 + 23 - 10 + 1) << 23;
            bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(magic)) - magic;
        } else {
            bits = (bits - ((127U - 15) << 23) + 0xFFF + ((bits >> 13) & 1)) >> 13;
        }
        put(to, static_cast<std::uint16_t>(bits | sign >> 16));
    }
};

template <typename E> void turn_pair(std::byte* to_a, std::byte* to_b, const std::byte* from_a, const std::byte* from_b, float cos, float sin) {
    const float a = E::load(from_a), b = E::load(from_b);
    E::store(to_a, a * cos - b * sin);
    E::store(to_b, b * cos + a * sin);
}

template <typename E> void column_by_one(const PairColumn& pair) {
    for (std::uint64_t slot = 0; slot < pair.count; ++slot) {
        const std::uint64_t at = slot * E::bytes;
        turn_pair<E>(pair.to_a + at, pair.to_b + at, pair.from_a + at, pair.from_b + at, pair.cos, pair.sin);
    }
}

template <typename E> void halves_by_one(const PairRow& row) {
    const std::uint64_t half = row.pairs * E::bytes;
    for (std::uint64_t pair = 0; pair < row.pairs; ++pair) {
        const std::uint64_t at = pair * E::bytes;
        turn_pair<E>(row.to + at, row.to + half + at, row.from + at, row.from + half + at, row.cos[pair], row.sin[pair]);
    }
}

template <typename E> void neighbours_by_one(const PairRow& row) {
    for (std::uint64_t pair = 0; pair < row.pairs; ++pair) {
        const std::uint64_t a = 2 * pair * E::bytes, b = a + E::bytes;
        turn_pair<E>(row.to + a, row.to + b, row.from + a, row.from + b, row.cos[2 * pair + 1], row.sin[2 * pair + 1]);
    }
}

// The elements of a pair, of a block or a slot.
template <typename Pairs> std::uint64_t first_of(const Pairs& pairs, std::uint64_t pair) { return pairs.neighbours ? 2 * pair : pair; }
template <typename Pairs> std::uint64_t second_of(const Pairs& pairs, std::uint64_t pair) {
    return pairs.neighbours ? 2 * pair + 1 : pair + pairs.pairs;
}

template <typename E> void places_by_one(const PairPlaces& slot) {
    for (std::uint64_t pair = 0; pair < slot.pairs; ++pair) {
        const std::uint64_t a = first_of(slot, pair), b = second_of(slot, pair);
        turn_pair<E>(slot.to + slot.targets[a], slot.to + slot.targets[b], slot.from + slot.sources[a], slot.from + slot.sources[b],
                     slot.cos[pair], slot.sin[pair]);
    }
}

template <typename E> void block_by_one(const PairBlock& block) {
    for (std::uint64_t pair = 0; pair < block.pairs; ++pair) {
        std::byte* a = block.part + block.offsets[first_of(block, pair)];
        std::byte* b = block.part + block.offsets[second_of(block, pair)];
        column_by_one<E>({a, b, a, b, block.slots, block.cos[pair], block.sin[pair]});
    }
}

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,f16c")

constexpr std::uint64_t LANES = 8;

struct Float32Lanes : Float32 {
    static __m256 load_all(const std::byte* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
    static void store_all(std::byte* to, __m256 values) { _mm256_storeu_ps(reinterpret_cast<float*>(to), values); }
};

struct BFloat16Lanes : BFloat16 {
    static __m256 load_all(const std::byte* from) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
    static void store_all(std::byte* to, __m256 values) {
        const __m256i bits = _mm256_castps_si256(values), high = _mm256_srli_epi32(bits, 16);
        const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
        const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        const __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
    }
};

struct Float16Lanes : Float16 {
    static __m256 load_all(const std::byte* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static void store_all(std::byte* to, __m256 values) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
};

// Where `count` is not a multiple of the lanes, the last of them are done twice: what is read is not what is written.
inline std::uint64_t next_lanes(std::uint64_t done, std::uint64_t count) { return done + LANES > count ? count - LANES : done; }

template <typename E> void column_by_lanes(const PairColumn& pair) {
    if (pair.count < LANES) return column_by_one<E>(pair);
    const __m256 cos = _mm256_set1_ps(pair.cos), sin = _mm256_set1_ps(pair.sin);
    for (std::uint64_t done = 0; done < pair.count; done += LANES) {
        done = next_lanes(done, pair.count);
        const std::uint64_t at = done * E::bytes;
        const __m256 a = E::load_all(pair.from_a + at), b = E::load_all(pair.from_b + at);
        E::store_all(pair.to_a + at, _mm256_sub_ps(_mm256_mul_ps(a, cos), _mm256_mul_ps(b, sin)));
        E::store_all(pair.to_b + at, _mm256_add_ps(_mm256_mul_ps(b, cos), _mm256_mul_ps(a, sin)));
    }
}

template <typename E> void halves_by_lanes(const PairRow& row) {
    if (row.pairs < LANES) return halves_by_one<E>(row);
    const std::uint64_t half = row.pairs * E::bytes;
    for (std::uint64_t done = 0; done < row.pairs; done += LANES) {
        done = next_lanes(done, row.pairs);
        const std::uint64_t at = done * E::bytes;
        const __m256 cos = _mm256_loadu_ps(row.cos + done), sin = _mm256_loadu_ps(row.sin + done);
        const __m256 a = E::load_all(row.from + at), b = E::load_all(row.from + half + at);
        E::store_all(row.to + at, _mm256_sub_ps(_mm256_mul_ps(a, cos), _mm256_mul_ps(b, sin)));
        E::store_all(row.to + half + at, _mm256_add_ps(_mm256_mul_ps(b, cos), _mm256_mul_ps(a, sin)));
    }
}

template <typename E> void neighbours_by_lanes(const PairRow& row) {
    const std::uint64_t elements = 2 * row.pairs;
    if (elements < LANES) return neighbours_by_one<E>(row);
    for (std::uint64_t done = 0; done < elements; done += LANES) {
        done = next_lanes(done, elements);
        const __m256 own = E::load_all(row.from + done * E::bytes), other = _mm256_permute_ps(own, 0xB1);
        const __m256 cos = _mm256_loadu_ps(row.cos + done), sin = _mm256_loadu_ps(row.sin + done);
        E::store_all(row.to + done * E::bytes, _mm256_add_ps(_mm256_mul_ps(own, cos), _mm256_mul_ps(other, sin)));
    }
}

template <typename E> void block_by_lanes(const PairBlock& block) {
    for (std::uint64_t pair = 0; pair < block.pairs; ++pair) {
        std::byte* a = block.part + block.offsets[first_of(block, pair)];
        std::byte* b = block.part + block.offsets[second_of(block, pair)];
        column_by_lanes<E>({a, b, a, b, block.slots, block.cos[pair], block.sin[pair]});
    }
}

// The sum that rounds the upper half of each number to the nearest, ties to even.
inline __m256i rounded(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
}

inline void store_halves(std::byte* to, __m256 even, __m256 odd) {
    const __m256i low = _mm256_srli_epi32(rounded(even), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(low, rounded(odd), 0xAA));
}

// Twice as many numbers at once: those with an even and those with an odd place each stay in their half of 32 bits.
void bfloat16_block(const PairBlock& block) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    for (std::uint64_t pair = 0; pair < block.pairs; ++pair) {
        std::byte* to_a = block.part + block.offsets[first_of(block, pair)];
        std::byte* to_b = block.part + block.offsets[second_of(block, pair)];
        const __m256 cos = _mm256_set1_ps(block.cos[pair]), sin = _mm256_set1_ps(block.sin[pair]);
        for (std::uint64_t done = 0; done < block.slots * 2; done += 4 * LANES) {
            const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(to_a + done));
            const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(to_b + done));
            const __m256 a_even = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), a_odd = _mm256_castsi256_ps(_mm256_and_si256(a, upper));
            const __m256 b_even = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), b_odd = _mm256_castsi256_ps(_mm256_and_si256(b, upper));
            const __m256 x_even = _mm256_sub_ps(_mm256_mul_ps(a_even, cos), _mm256_mul_ps(b_even, sin));
            const __m256 x_odd = _mm256_sub_ps(_mm256_mul_ps(a_odd, cos), _mm256_mul_ps(b_odd, sin));
            const __m256 y_even = _mm256_add_ps(_mm256_mul_ps(b_even, cos), _mm256_mul_ps(a_even, sin));
            const __m256 y_odd = _mm256_add_ps(_mm256_mul_ps(b_odd, cos), _mm256_mul_ps(a_odd, sin));
            const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(x_even, x_odd, _CMP_UNORD_Q), _mm256_cmp_ps(y_even, y_odd, _CMP_UNORD_Q));
            if (_mm256_movemask_ps(nan) != 0) {  // rounding is not for them
                column_by_one<BFloat16>({to_a + done, to_b + done, to_a + done, to_b + done, 2 * LANES, block.cos[pair], block.sin[pair]});
                continue;
            }
            store_halves(to_a + done, x_even, x_odd);
            store_halves(to_b + done, y_even, y_odd);
        }
    }
}

#pragma GCC pop_options

template <typename E> TurnKernels by_lanes() {
    return {block_by_lanes<E>, LANES, column_by_lanes<E>, halves_by_lanes<E>, neighbours_by_lanes<E>, places_by_one<E>};
}

#endif

template <typename E> TurnKernels by_one() {
    return {block_by_one<E>, 1, column_by_one<E>, halves_by_one<E>, neighbours_by_one<E>, places_by_one<E>};
}

}  // namespace

TurnKernels turn_kernels(Element element) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        switch (element) {
            case Element::float32: return by_lanes<Float32Lanes>();
            case Element::bfloat16: {
                TurnKernels kernels = by_lanes<BFloat16Lanes>();
                kernels.block = bfloat16_block;
                kernels.lanes = 2 * LANES;
                return kernels;
            }
            case Element::float16: return by_lanes<Float16Lanes>();
        }
    }
#endif
    switch (element) {
        case Element::float32: return by_one<Float32>();
        case Element::bfloat16: return by_one<BFloat16>();
        case Element::float16: break;
    }
    return by_one<Float16>();
}

}  // namespace lmcache
