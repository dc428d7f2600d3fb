// Turns pairs of elements in float32 and rounds them once, to the nearest, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "row_move.h"

namespace lmcache {

// One pair of many slots, which lie side by side: (a, b) becomes (a cos - b sin, b cos + a sin).
struct PairColumn {
    std::byte* to_a;
    std::byte* to_b;
    const std::byte* from_a;
    const std::byte* from_b;
    std::uint64_t count;
    float cos;
    float sin;
};

// All pairs of one slot, which lie side by side: halves, or neighbours.  `cos` and `sin` have one number for each pair of halves;
// of neighbours each number twice, sines first with a minus.
struct PairRow {
    std::byte* to;
    const std::byte* from;
    std::uint64_t pairs;
    const float* cos;
    const float* sin;
};

// One pair of the slots of a block, of all heads.  Slots lie side by side, `bytes` of them; the first `split` bytes come from
// `from_a` and `from_b`, the others from what is at the same distance from `then_a` and `then_b`.
struct PairRuns {
    std::byte* to_a;
    std::byte* to_b;
    const std::byte* from_a;
    const std::byte* from_b;
    const std::byte* then_a;
    const std::byte* then_b;
    std::uint64_t bytes;  // at least RUN_BYTES
    std::uint64_t split;
    std::uint64_t heads;
    std::uint64_t to_head;
    std::uint64_t from_head;
    std::uint64_t ahead;  // how far behind what is read to fetch, in bytes
    float cos;
    float sin;
};

// What is read at once, on both sides of a split as well: up to as many bytes beside the runs.
constexpr std::uint64_t RUN_BYTES = 32;

struct RunKernels {
    void (*part)(const PairRuns&);    // nothing is split
    void (*stream)(const PairRuns&);  // past the caches: `to` and `bytes` are multiples of RUN_BYTES
};

// All pairs of one slot, its elements anywhere.
struct PairPlaces {
    std::byte* to;
    const std::byte* from;
    const std::uint64_t* targets;  // of each element
    const std::uint64_t* sources;
    std::uint64_t pairs;
    bool neighbours;
    const float* cos;  // one number for each pair
    const float* sin;
};

struct TurnKernels {
    void (*column)(const PairColumn&);
    void (*halves)(const PairRow&);
    void (*neighbours)(const PairRow&);
    void (*places)(const PairPlaces&);
    RunKernels turned;  // null where this processor has none
    RunKernels as_they_are;
};

// The fastest that this processor runs.  All give the same bits.
TurnKernels turn_kernels(Element element);

}  // namespace lmcache
