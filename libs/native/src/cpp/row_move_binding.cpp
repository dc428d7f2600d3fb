#include "row_move_binding.h"

#include "page_arguments.h"
#include "row_move.h"

namespace lmcache {

namespace {

template <bool into_object>
std::uint64_t move_rows(nb::handle bases, nb::handle blocks, nb::handle object, std::int64_t kv_axis, std::int64_t layers,
                        std::int64_t first_layer, std::int64_t end_layer, std::int64_t slots_per_block, std::int64_t heads,
                        std::int64_t head_bytes, std::int64_t block_stride, std::int64_t slot_stride, std::int64_t head_stride,
                        std::int64_t page_blocks, std::int64_t object_slots, std::int64_t first_slot, std::int64_t count,
                        std::int64_t first_page_slot, std::int64_t element, nb::handle key_slots, nb::handle key_elements,
                        nb::handle value_slots, nb::handle value_elements, nb::handle pairs, nb::handle turns) {
    if (element < 0 || element > 2) refuse_argument("element must be FLOAT32 (0), BFLOAT16 (1) or FLOAT16 (2)");
    RowMove move;
    move.into_object = into_object;
    move.shape = page_shape(kv_axis, layers, slots_per_block, heads, head_bytes, block_stride, slot_stride, head_stride);
    move.element = static_cast<Element>(element);
    move.first_layer = at_least(0, first_layer, "first_layer");
    move.end_layer = at_least(0, end_layer, "end_layer");
    move.page_blocks = at_least(1, page_blocks, "page_blocks");
    move.object_slots = at_least(1, object_slots, "object_slots");
    move.first_slot = at_least(0, first_slot, "first_slot");
    move.count = at_least(0, count, "count");
    move.first_page_slot = at_least(0, first_page_slot, "first_page_slot");
    move.bases = numbers_of<std::uint64_t>(bases, "bases");
    move.blocks = numbers_of<std::int64_t>(blocks, "blocks");
    const auto objects = numbers_of<std::uint64_t>(object, "object");
    if (objects.size() != 1) refuse_argument("object must be one address");
    move.object = objects[0];
    move.key = {numbers_of<std::uint64_t>(key_slots, "key_slots"), numbers_of<std::uint64_t>(key_elements, "key_elements")};
    move.value = {numbers_of<std::uint64_t>(value_slots, "value_slots"), numbers_of<std::uint64_t>(value_elements, "value_elements")};
    move.pairs = numbers_of<std::int64_t>(pairs, "pairs");
    move.turns = numbers_of<float>(turns, "turns");
    check(move);
    bool whole = false;
    {
        const nb::gil_scoped_release unlocked;
        whole = run(move);
    }
    if (!whole) raise_fault();
    return move.bytes();
}

template <bool into_object>
void define(nb::module_& module, const char* name) {
    module.def(name, &move_rows<into_object>, nb::arg("bases"), nb::arg("blocks"), nb::arg("object"), nb::arg("kv_axis"), nb::arg("layers"),
               nb::arg("first_layer"), nb::arg("end_layer"), nb::arg("slots_per_block"), nb::arg("heads"), nb::arg("head_bytes"),
               nb::arg("block_stride"), nb::arg("slot_stride"), nb::arg("head_stride"), nb::arg("page_blocks"),
               nb::arg("object_slots"), nb::arg("first_slot"), nb::arg("count"), nb::arg("first_page_slot"), nb::arg("element"),
               nb::arg("key_slots"), nb::arg("key_elements"), nb::arg("value_slots"), nb::arg("value_elements"), nb::arg("pairs"),
               nb::arg("turns"));
}

}  // namespace

void bind_row_move(nb::module_& module) {
    module.attr("FLOAT32") = static_cast<int>(Element::float32);
    module.attr("BFLOAT16") = static_cast<int>(Element::bfloat16);
    module.attr("FLOAT16") = static_cast<int>(Element::float16);
    define<false>(module, "read_rows");
    define<true>(module, "write_rows");
}

}  // namespace lmcache
