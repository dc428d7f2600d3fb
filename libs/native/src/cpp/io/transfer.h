// Bytes between an operation's memory and its file, by blocking calls, whatever is aligned and whatever is not.
#pragma once

#include <memory>

#include "operation.h"

namespace lmcache::io {

class OperationFile;

// Moves ranges of one operation.  With O_DIRECT, what the medium takes only in whole blocks and from aligned memory goes
// through a bounce buffer; the first and last bytes of a misaligned write, of which the medium must keep the rest of the
// block, go through the page cache.
class Transfer {
public:
    Transfer(const Operation& operation, OperationFile& file) : operation_(operation), file_(file) {}
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    // 0 once all of it was moved, or -errno; -ENODATA where a file ends early.
    int read(Range range);
    int write(Range range);

    bool bounced() const { return bounced_; }

private:
    struct Free {
        void operator()(std::byte* memory) const;
    };

    bool aligned(std::uint64_t at) const;
    int read_direct(Range range);
    int read_bounced(Range range);
    int write_direct(Range range);
    int write_bounced(Range range);
    int write_edge(Range range);
    std::byte* bounce();

    const Operation& operation_;
    OperationFile& file_;
    std::unique_ptr<std::byte, Free> bounce_;
    bool bounced_ = false;
};

// One range with plain pread or pwrite, continued where the system moved less than was asked for.
int read_fully(int fd, std::byte* memory, std::uint64_t length, std::uint64_t offset);
int write_fully(int fd, const std::byte* memory, std::uint64_t length, std::uint64_t offset);

}  // namespace lmcache::io
