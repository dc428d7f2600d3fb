// The compiled read_prompt: see ReadPrompt in lmcache_client/hash_chain.py for what it does.
#pragma once

#include "python_values.h"

namespace lmcache {

void bind_prompt(nb::module_& module);

}  // namespace lmcache
