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

// The sum that rounds the upper half of each number to the nearest, ties to even.
inline __m256i rounded(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
}

inline __m256i halves_of(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(rounded(even), 16), rounded(odd), 0xAA);
}

// Those of 16 numbers with an even place, and those with an odd one, which stay in their halves of 32 bits.
inline __m256 even_of(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
inline __m256 odd_of(__m256i words) { return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)))); }

inline bool has_nan(__m256 one, __m256 other) { return _mm256_movemask_ps(_mm256_cmp_ps(one, other, _CMP_UNORD_Q)) != 0; }

inline __m256i load_run(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store_run(std::byte* to, __m256i words) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words); }

struct Run {
    __m256i a;
    __m256i b;
};

inline __m256 turned_a(__m256 a, __m256 b, __m256 cos, __m256 sin) { return _mm256_sub_ps(_mm256_mul_ps(a, cos), _mm256_mul_ps(b, sin)); }
inline __m256 turned_b(__m256 a, __m256 b, __m256 cos, __m256 sin) { return _mm256_add_ps(_mm256_mul_ps(b, cos), _mm256_mul_ps(a, sin)); }

struct AsTheyAre {
    static Run turned(Run run, __m256, __m256) { return run; }
};

struct Float32Run {
    static Run turned(Run run, __m256 cos, __m256 sin) {
        const __m256 a = _mm256_castsi256_ps(run.a), b = _mm256_castsi256_ps(run.b);
        return {_mm256_castps_si256(turned_a(a, b, cos, sin)), _mm256_castps_si256(turned_b(a, b, cos, sin))};
    }
};

struct BFloat16Run {
    static Run turned(Run run, __m256 cos, __m256 sin) { return turned(run, cos, sin, cos, sin); }

    static Run turned(Run run, __m256 even_cos, __m256 even_sin, __m256 odd_cos, __m256 odd_sin) {
        const __m256 a_even = even_of(run.a), a_odd = odd_of(run.a), b_even = even_of(run.b), b_odd = odd_of(run.b);
        const __m256 x_even = turned_a(a_even, b_even, even_cos, even_sin), x_odd = turned_a(a_odd, b_odd, odd_cos, odd_sin);
        const __m256 y_even = turned_b(a_even, b_even, even_cos, even_sin), y_odd = turned_b(a_odd, b_odd, odd_cos, odd_sin);
        if (has_nan(_mm256_add_ps(x_even, x_odd), _mm256_add_ps(y_even, y_odd))) {  // rounding is not for them
            return {careful(x_even, x_odd), careful(y_even, y_odd)};
        }
        return {halves_of(x_even, x_odd), halves_of(y_even, y_odd)};
    }

    static __m256i careful(__m256 even, __m256 odd) {
        alignas(32) float numbers[2][LANES];
        alignas(32) std::byte words[RUN_BYTES];
        _mm256_store_ps(numbers[0], even);
        _mm256_store_ps(numbers[1], odd);
        for (std::uint64_t at = 0; at < 2 * LANES; ++at) BFloat16::store(words + 2 * at, numbers[at % 2][at / 2]);
        return load_run(words);
    }
};

struct Float16Run {
    static Run turned(Run run, __m256 cos, __m256 sin) {
        const __m256 a_low = _mm256_cvtph_ps(_mm256_castsi256_si128(run.a)), a_high = _mm256_cvtph_ps(_mm256_extracti128_si256(run.a, 1));
        const __m256 b_low = _mm256_cvtph_ps(_mm256_castsi256_si128(run.b)), b_high = _mm256_cvtph_ps(_mm256_extracti128_si256(run.b, 1));
        return {joined(turned_a(a_low, b_low, cos, sin), turned_a(a_high, b_high, cos, sin)),
                joined(turned_b(a_low, b_low, cos, sin), turned_b(a_high, b_high, cos, sin))};
    }

    static __m256i joined(__m256 low, __m256 high) {
        return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    }
};

template <typename E> void part_of_runs(const PairRuns& runs) {
    const __m256 cos = _mm256_set1_ps(runs.cos), sin = _mm256_set1_ps(runs.sin);
    for (std::uint64_t head = 0; head < runs.heads; ++head) {
        const std::uint64_t from = head * runs.from_head, to = head * runs.to_head;
        for (std::uint64_t done = 0; done < runs.bytes; done += RUN_BYTES) {
            done = done + RUN_BYTES > runs.bytes ? runs.bytes - RUN_BYTES : done;
            _mm_prefetch(runs.from_a + from + done + runs.ahead, _MM_HINT_T0);
            _mm_prefetch(runs.from_b + from + done + runs.ahead, _MM_HINT_T0);
            const Run found = E::turned({load_run(runs.from_a + from + done), load_run(runs.from_b + from + done)}, cos, sin);
            store_run(runs.to_a + to + done, found.a);
            store_run(runs.to_b + to + done, found.b);
        }
    }
}

template <typename E> void stream_runs(const PairRuns& runs) {
    const __m256 cos = _mm256_set1_ps(runs.cos), sin = _mm256_set1_ps(runs.sin);
    const __m256i places = _mm256_set_epi8(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3,
                                           2, 1, 0);
    const __m256i is_first = _mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(runs.split % RUN_BYTES)), places);
    for (std::uint64_t head = 0; head < runs.heads; ++head) {
        const std::uint64_t from = head * runs.from_head, to = head * runs.to_head;
        for (std::uint64_t done = 0; done < runs.bytes; done += RUN_BYTES) {
            const bool behind = done >= runs.split;
            const std::byte* a = (behind ? runs.then_a : runs.from_a) + from + done;
            const std::byte* b = (behind ? runs.then_b : runs.from_b) + from + done;
            _mm_prefetch(a + runs.ahead, _MM_HINT_T0);
            _mm_prefetch(b + runs.ahead, _MM_HINT_T0);
            Run run = {load_run(a), load_run(b)};
            if (!behind && done + RUN_BYTES > runs.split) {
                run.a = _mm256_blendv_epi8(load_run(runs.then_a + from + done), run.a, is_first);
                run.b = _mm256_blendv_epi8(load_run(runs.then_b + from + done), run.b, is_first);
            }
            run = E::turned(run, cos, sin);
            _mm256_stream_si256(reinterpret_cast<__m256i*>(runs.to_a + to + done), run.a);
            _mm256_stream_si256(reinterpret_cast<__m256i*>(runs.to_b + to + done), run.b);
        }
    }
}

// 8 of 16 numbers: those with an even place.
inline __m256 every_other(const float* numbers) {
    const __m256 low = _mm256_set_m128(_mm_loadu_ps(numbers + 8), _mm_loadu_ps(numbers));
    const __m256 high = _mm256_set_m128(_mm_loadu_ps(numbers + 12), _mm_loadu_ps(numbers + 4));
    return _mm256_shuffle_ps(low, high, 0x88);
}

inline __m256 every_other_behind(const float* numbers) {
    const __m256 low = _mm256_set_m128(_mm_loadu_ps(numbers + 8), _mm_loadu_ps(numbers));
    const __m256 high = _mm256_set_m128(_mm_loadu_ps(numbers + 12), _mm_loadu_ps(numbers + 4));
    return _mm256_shuffle_ps(low, high, 0xDD);
}

void bfloat16_halves(const PairRow& row) {
    if (row.pairs < 2 * LANES) return halves_by_lanes<BFloat16Lanes>(row);
    const std::uint64_t half = row.pairs * 2;
    for (std::uint64_t done = 0; done < row.pairs; done += 2 * LANES) {
        done = done + 2 * LANES > row.pairs ? row.pairs - 2 * LANES : done;
        const Run found = BFloat16Run::turned({load_run(row.from + 2 * done), load_run(row.from + half + 2 * done)}, every_other(row.cos + done),
                                              every_other(row.sin + done), every_other_behind(row.cos + done), every_other_behind(row.sin + done));
        store_run(row.to + 2 * done, found.a);
        store_run(row.to + half + 2 * done, found.b);
    }
}

#pragma GCC pop_options

template <typename E, typename R> TurnKernels by_lanes() {
    return {column_by_lanes<E>, halves_by_lanes<E>, neighbours_by_lanes<E>, places_by_one<E>, {part_of_runs<R>, stream_runs<R>},
            {part_of_runs<AsTheyAre>, stream_runs<AsTheyAre>}};
}

#endif

template <typename E> TurnKernels by_one() {
    return {column_by_one<E>, halves_by_one<E>, neighbours_by_one<E>, places_by_one<E>, {}, {}};
}

}  // namespace

TurnKernels turn_kernels(Element element) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        switch (element) {
            case Element::float32: return by_lanes<Float32Lanes, Float32Run>();
            case Element::bfloat16: {
                TurnKernels kernels = by_lanes<BFloat16Lanes, BFloat16Run>();
                kernels.halves = bfloat16_halves;
                return kernels;
            }
            case Element::float16: return by_lanes<Float16Lanes, Float16Run>();
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
