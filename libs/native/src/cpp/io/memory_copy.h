// Memory to memory, past the caches, hashed on the way.
#pragma once

#include "blocking_io.h"

namespace lmcache::io {

// A `Kind::copy`; -EFAULT where a page of either side vanished.
Outcome copy_memory(const Operation& operation);

}  // namespace lmcache::io
