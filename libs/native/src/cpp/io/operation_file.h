// The descriptor that an operation works on: the caller's, or one that was opened for this operation alone.
#pragma once

#include "operation.h"

namespace lmcache::io {

class OperationFile {
public:
    OperationFile() = default;
    OperationFile(const OperationFile&) = delete;
    OperationFile& operator=(const OperationFile&) = delete;
    ~OperationFile();

    // Blocks.  0, or -errno: then there is nothing to conclude.
    int open(const Operation& operation);

    int fd() const { return fd_; }
    // Was it opened for O_DIRECT, and has the medium taken that so far?
    bool direct() const { return direct_; }
    // A second descriptor of the same file, without O_DIRECT, for what O_DIRECT refuses.  -errno where there is none.
    int buffered_fd();
    // The medium refuses O_DIRECT as we do it: everything goes through the page cache from here on.  0, or -errno.
    int leave_direct();

    // 0, or -errno.  Blocks.
    int sync() const;
    // What is left to do once the bytes were moved, or were not: sync, publish, remove the temporary.  `result` unless that
    // failed.  Blocks, except after a read.
    std::int64_t conclude(const Operation& operation, std::int64_t result);

private:
    int open_to_read(const Operation& operation);
    int open_to_write(const Operation& operation);
    int publish(const Operation& operation) const;
    void close();

    int fd_ = -1;
    int own_fd_ = -1;
    int buffered_fd_ = -1;
    bool direct_ = false;
    bool made_temporary_ = false;
};

}  // namespace lmcache::io
