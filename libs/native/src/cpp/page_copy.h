// Copies between the paged KV cache of an engine and chunk objects, which have their tokens one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lmcache {

// `gather` reads pages and writes objects, `scatter` the other way round.
enum class Direction { gather = 0, scatter = 1 };

// How the pages of a group of layers are laid out; all strides are in bytes.
struct PageShape {
    std::uint64_t kv_axis = 1;  // 2 where keys and values lie apart
    std::uint64_t layers = 1;
    std::uint64_t slots_per_block = 1;
    std::uint64_t heads = 1;
    std::uint64_t head_bytes = 1;
    std::uint64_t block_stride = 0;
    std::uint64_t slot_stride = 0;
    std::uint64_t head_stride = 0;

    std::uint64_t slot_bytes() const { return heads * head_bytes; }
    bool token_major() const {
        return (heads == 1 || head_stride == head_bytes) && (slots_per_block == 1 || slot_stride == slot_bytes());
    }
    // Whether the block with the next id lies right behind, as in an object.
    bool adjacent() const { return token_major() && block_stride == slots_per_block * slot_bytes(); }
};

// One call.  `run` takes one that `check` has passed.
struct PageCopy {
    Direction direction = Direction::gather;
    PageShape shape;
    std::vector<std::uint64_t> bases;    // of (kv, layer), all layers
    std::vector<std::int64_t> blocks;    // of each object one behind the other; -1 is left out
    std::vector<std::uint64_t> objects;  // where each begins
    std::uint64_t first_layer = 0;
    std::uint64_t end_layer = 1;
    std::uint64_t skip_slots = 0;  // of the first object
    unsigned threads = 1;

    std::uint64_t blocks_per_object() const { return objects.empty() ? 0 : blocks.size() / objects.size(); }
    // Of all blocks that are not left out.
    std::uint64_t bytes() const;
};

// Throws std::invalid_argument, which names the argument and its limit, unless all that `run` will touch lies within what the
// numbers describe: each base and its blocks, each object and its planes.  Whether that is memory is the caller's to know.
void check(const PageCopy& copy);

// Moves the bytes; the caller holds no lock that others wait for.  False where memory vanished under it: then some bytes
// have been moved.
bool run(const PageCopy& copy);

}  // namespace lmcache
