#include "page_copy_binding.h"

#include <string>

#include "page_arguments.h"
#include "page_copy.h"

namespace lmcache {

namespace {

constexpr std::int64_t THREADS_LIMIT = 256;

std::uint64_t copy_pages(std::int64_t direction, nb::handle bases, nb::handle blocks, nb::handle objects, std::int64_t kv_axis,
                         std::int64_t layers, std::int64_t first_layer, std::int64_t end_layer, std::int64_t slots_per_block,
                         std::int64_t heads, std::int64_t head_bytes, std::int64_t block_stride, std::int64_t slot_stride,
                         std::int64_t head_stride, std::int64_t skip_slots, std::int64_t threads) {
    if (direction != 0 && direction != 1) refuse_argument("direction must be GATHER (0) or SCATTER (1)");
    if (threads > THREADS_LIMIT) refuse_argument("threads must be at most " + std::to_string(THREADS_LIMIT));
    PageCopy copy;
    copy.direction = static_cast<Direction>(direction);
    copy.shape = page_shape(kv_axis, layers, slots_per_block, heads, head_bytes, block_stride, slot_stride, head_stride);
    copy.first_layer = at_least(0, first_layer, "first_layer");
    copy.end_layer = at_least(0, end_layer, "end_layer");
    copy.skip_slots = at_least(0, skip_slots, "skip_slots");
    copy.threads = static_cast<unsigned>(at_least(1, threads, "threads"));
    copy.bases = numbers_of<std::uint64_t>(bases, "bases");
    copy.blocks = numbers_of<std::int64_t>(blocks, "blocks");
    copy.objects = numbers_of<std::uint64_t>(objects, "objects");
    check(copy);
    bool whole = false;
    {
        const nb::gil_scoped_release unlocked;
        whole = run(copy);
    }
    if (!whole) raise_fault();
    return copy.bytes();
}

}  // namespace

void bind_page_copy(nb::module_& module) {
    module.attr("GATHER") = static_cast<int>(Direction::gather);
    module.attr("SCATTER") = static_cast<int>(Direction::scatter);
    module.def("copy_pages", &copy_pages, nb::arg("direction"), nb::arg("bases"), nb::arg("blocks"), nb::arg("objects"),
               nb::arg("kv_axis"), nb::arg("layers"), nb::arg("first_layer"), nb::arg("end_layer"), nb::arg("slots_per_block"),
               nb::arg("heads"), nb::arg("head_bytes"), nb::arg("block_stride"), nb::arg("slot_stride"), nb::arg("head_stride"),
               nb::arg("skip_slots"), nb::arg("threads"));
}

}  // namespace lmcache
