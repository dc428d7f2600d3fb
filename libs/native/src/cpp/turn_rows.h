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

// Pairs of slots that lie side by side, in place: all pairs of a block, elements at their offsets.
struct PairBlock {
    std::byte* part;
    const std::uint64_t* offsets;
    std::uint64_t slots;  // a multiple of the kernel's lanes
    std::uint64_t pairs;
    bool neighbours;
    const float* cos;  // one number for each pair
    const float* sin;
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
    void (*block)(const PairBlock&);
    std::uint64_t lanes;
    void (*column)(const PairColumn&);
    void (*halves)(const PairRow&);
    void (*neighbours)(const PairRow&);
    void (*places)(const PairPlaces&);
};

// The fastest that this processor runs.  All give the same bits.
TurnKernels turn_kernels(Element element);

}  // namespace lmcache
