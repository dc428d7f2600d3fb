// ChunkTable as Python calls it: see lmcache_native/_kernels.pyi.
#pragma once

#include <nanobind/nanobind.h>

namespace lmcache {

void bind_chunk_table(nanobind::module_& module);

}  // namespace lmcache
