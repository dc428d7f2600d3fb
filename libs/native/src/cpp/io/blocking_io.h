// An operation from its beginning to its end on the calling thread.
#pragma once

#include "operation.h"

namespace lmcache::io {

class OperationFile;

struct Outcome {
    std::int64_t result = 0;  // bytes moved, or -errno
    std::optional<DigestBytes> digest = std::nullopt;
    bool bounced = false;
};

// Everything, of every kind.
Outcome run_blocking(const Operation& operation);
// The same for a file that is open already.
Outcome run_blocking(const Operation& operation, OperationFile& file);

}  // namespace lmcache::io
