// Operations out of Python's tuples.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "operation.h"

namespace lmcache::io {

// Throws TypeError or ValueError, naming the operation and its field, where one is malformed.  Needs the interpreter.
std::vector<Operation> operations_of(nanobind::handle sequence);

}  // namespace lmcache::io
