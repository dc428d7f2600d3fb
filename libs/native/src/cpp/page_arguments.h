// What all calls that touch an engine's pages are given, and how they say that memory was gone.
#pragma once

#include <cerrno>
#include <cstdint>

#include "number_arguments.h"
#include "page_copy.h"

namespace lmcache {

inline PageShape page_shape(std::int64_t kv_axis, std::int64_t layers, std::int64_t slots_per_block, std::int64_t heads,
                            std::int64_t head_bytes, std::int64_t block_stride, std::int64_t slot_stride,
                            std::int64_t head_stride) {
    return PageShape{
        .kv_axis = at_least(1, kv_axis, "kv_axis"),
        .layers = at_least(1, layers, "layers"),
        .slots_per_block = at_least(1, slots_per_block, "slots_per_block"),
        .heads = at_least(1, heads, "heads"),
        .head_bytes = at_least(1, head_bytes, "head_bytes"),
        .block_stride = at_least(0, block_stride, "block_stride"),
        .slot_stride = at_least(0, slot_stride, "slot_stride"),
        .head_stride = at_least(0, head_stride, "head_stride"),
    };
}

[[noreturn]] inline void raise_fault() {
    errno = EFAULT;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
}

}  // namespace lmcache
