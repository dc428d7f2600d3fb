// Copies by geometries that a worker could register: what `check` lets pass touches the memory that the numbers describe and
// nothing else, and puts each byte where a copy byte by byte puts it.
#include "../src/cpp/page_copy.h"

#include <cstring>
#include <stdexcept>

#include "input.h"

namespace {

using lmcache::Direction;
using lmcache::PageCopy;
using lmcache::PageShape;

constexpr std::uint64_t PLANE_BYTES_MAX = 1 << 16;

std::uint64_t plane_bytes(const PageCopy& copy) {
    const PageShape& shape = copy.shape;
    std::int64_t last = 0;
    for (const std::int64_t block : copy.blocks) last = std::max(last, block);
    return static_cast<std::uint64_t>(last) * shape.block_stride + (shape.slots_per_block - 1) * shape.slot_stride +
           (shape.heads - 1) * shape.head_stride + shape.head_bytes;
}

// Calls `move(page offset in its plane, plane, object, object offset)` for each byte that is to be moved.
template <typename Move> void each_byte(const PageCopy& copy, Move move) {
    const PageShape& shape = copy.shape;
    const std::uint64_t per_object = copy.blocks_per_object(), slots = per_object * shape.slots_per_block;
    for (std::uint64_t object = 0; object < copy.objects.size(); ++object)
        for (std::uint64_t plane = 0; plane < copy.bases.size(); ++plane) {
            const std::uint64_t layer = plane % shape.layers;
            if (layer < copy.first_layer || layer >= copy.end_layer) continue;
            for (std::uint64_t slot = object == 0 ? copy.skip_slots : 0; slot < slots; ++slot) {
                const std::int64_t block = copy.blocks[object * per_object + slot / shape.slots_per_block];
                if (block < 0) continue;
                for (std::uint64_t head = 0; head < shape.heads; ++head)
                    for (std::uint64_t byte = 0; byte < shape.head_bytes; ++byte)
                        move(static_cast<std::uint64_t>(block) * shape.block_stride + slot % shape.slots_per_block * shape.slot_stride +
                                 head * shape.head_stride + byte,
                             plane, object, ((plane * slots + slot) * shape.heads + head) * shape.head_bytes + byte);
            }
        }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    PageCopy copy;
    PageShape& shape = copy.shape;
    shape.kv_axis = 1 + input.below(3);
    shape.layers = 1 + input.below(3);
    shape.slots_per_block = 1 + input.below(5);
    shape.heads = 1 + input.below(4);
    shape.head_bytes = 1 + input.below(40);
    const std::uint64_t block_bytes = shape.slots_per_block * shape.slot_bytes();
    // Mostly strides as tensors have them, of either order of slots and heads, and some of any size.
    const bool head_major = input.below(2) != 0;
    shape.slot_stride = input.below(4) != 0 ? (head_major ? shape.head_bytes : shape.slot_bytes()) : input.byte();
    shape.head_stride = input.below(4) != 0 ? (head_major ? shape.slots_per_block * shape.head_bytes : shape.head_bytes) : input.byte();
    shape.block_stride = block_bytes + input.below(3) * 8;
    copy.first_layer = input.below(4);
    copy.end_layer = input.below(4);
    copy.skip_slots = input.below(8);
    copy.threads = 1 + static_cast<unsigned>(input.below(2));
    const std::size_t objects = input.below(4), per_object = input.below(5);
    std::uint64_t used = 0;  // a block is written once: twice has no defined result
    for (std::size_t block = 0; block < objects * per_object; ++block) {
        const std::int64_t id = static_cast<std::int64_t>(input.below(24)) - 1;
        const bool taken = id >= 0 && (used >> id & 1) != 0;
        if (id >= 0) used |= std::uint64_t{1} << id;
        copy.blocks.push_back(taken ? -1 : id);
    }
    if (plane_bytes(copy) > PLANE_BYTES_MAX) return 0;

    const std::uint64_t planes = shape.kv_axis * shape.layers;
    const std::uint64_t object_bytes = per_object * block_bytes * planes;
    std::vector<std::vector<std::uint8_t>> pages(planes), wanted_pages, kept(objects), wanted;
    std::uint8_t value = 1;
    for (auto& page : pages) {
        page.resize(plane_bytes(copy));
        for (auto& byte : page) byte = value++;
    }
    for (auto& object : kept) {
        object.resize(object_bytes);
        for (auto& byte : object) byte = value += 3;
    }
    const auto address = [](auto& bytes) { return reinterpret_cast<std::uint64_t>(bytes.data()); };
    for (auto& page : pages) copy.bases.push_back(address(page));
    for (auto& object : kept) copy.objects.push_back(address(object));
    try {
        lmcache::check(copy);
    } catch (const std::invalid_argument&) {
        return 0;
    }
    // Strides under which two places of a page are one have no defined order when they are written; reading them is fine.
    copy.direction = Direction::gather;
    wanted = kept;
    each_byte(copy, [&](auto page, auto plane, auto object, auto offset) { wanted[object][offset] = pages[plane][page]; });
    require(lmcache::run(copy));
    require(kept == wanted);

    copy.direction = Direction::scatter;
    for (auto& page : pages) std::memset(page.data(), 0, page.size());
    require(lmcache::run(copy));
    wanted_pages.assign(planes, std::vector<std::uint8_t>(plane_bytes(copy)));
    std::vector<std::vector<std::uint8_t>> times(planes, std::vector<std::uint8_t>(plane_bytes(copy)));
    bool disjoint = true;
    each_byte(copy, [&](auto page, auto plane, auto object, auto offset) {
        wanted_pages[plane][page] = kept[object][offset];
        disjoint = disjoint && times[plane][page]++ == 0;
    });
    require(!disjoint || pages == wanted_pages);
    return 0;
}
