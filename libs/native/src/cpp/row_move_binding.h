// read_rows as Python calls it: see lmcache_native/_kernels.pyi.
#pragma once

#include <nanobind/nanobind.h>

namespace lmcache {

void bind_row_move(nanobind::module_& module);

}  // namespace lmcache
