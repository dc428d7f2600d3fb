// Tokens between a chunk object and the pages of an engine, at any slot of both, keys turned to where they go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "page_copy.h"

namespace lmcache {

enum class Element { float32 = 0, bfloat16 = 1, float16 = 2 };

// Element e of slot s of any head is at slots[s] + elements[e] in that head's part of a block, [slot][element of a row].
struct Places {
    std::vector<std::uint64_t> slots;
    std::vector<std::uint64_t> elements;
};

// One call.  `run` takes one that `check` has passed.
struct RowMove {
    bool into_object = false;  // else into the pages
    PageShape shape;
    Element element = Element::float32;
    std::vector<std::uint64_t> bases;  // of (kv, layer), all layers
    std::uint64_t page_blocks = 0;     // that each base has
    std::uint64_t object = 0;          // where it begins
    std::uint64_t object_slots = 0;
    std::uint64_t first_slot = 0;  // of the object
    std::uint64_t count = 0;
    std::vector<std::int64_t> blocks;  // that the slots are in, one behind the other
    std::uint64_t first_page_slot = 0;  // of the first of them
    std::uint64_t first_layer = 0;
    std::uint64_t end_layer = 1;
    Places key;
    Places value;
    std::vector<std::int64_t> pairs;  // of each chosen layer: how many are turned; negative: neighbours are pairs, not halves
    std::vector<float> turns;         // of each chosen layer the cosines of its pairs and then their sines

    std::uint64_t item_bytes() const { return element == Element::float32 ? 4 : 2; }
    std::uint64_t bytes() const;  // that are written
};

// As for copies of pages: throws std::invalid_argument unless all that `run` will touch lies within what the numbers describe.
void check(const RowMove& move);

// False where memory vanished under it: then some rows have been written.
bool run(const RowMove& move);

}  // namespace lmcache
