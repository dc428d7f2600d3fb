// The compiled read_prompt: see lmcache_core/kernels/interfaces.py for what it does.
#pragma once

#include "python_values.h"

namespace lmcache {

void bind_prompt(nb::module_& module);

}  // namespace lmcache
