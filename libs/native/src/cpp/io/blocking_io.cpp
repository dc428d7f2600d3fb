#include "blocking_io.h"

#include <algorithm>
#include <cerrno>

#include "digest.h"
#include "memory_copy.h"
#include "operation_file.h"
#include "transfer.h"

namespace lmcache::io {

namespace {

// Bytes that are read before they are hashed.  Through the page cache: no more than stays in a core's cache.  With O_DIRECT:
// enough to keep the medium busy.
constexpr std::uint64_t CACHED_BLOCK = std::uint64_t{1} << 20;
constexpr std::uint64_t DIRECT_BLOCK = std::uint64_t{4} << 20;
// The first block of a file that has no other reader on this descriptor; each further one is twice as long.  The kernel
// reads ahead in ever larger pieces, which cost less than the single pages that it begins with, so that a small first block
// makes it read ahead soon.  Where others read by the same descriptor it does not recognize a sequence.
constexpr std::uint64_t FIRST_BLOCK = std::uint64_t{128} << 10;

struct Blocks {
    std::uint64_t first;
    std::uint64_t most;
};

Blocks blocks_of(const Operation& operation, const OperationFile& file) {
    if (file.direct()) return {DIRECT_BLOCK, DIRECT_BLOCK};
    // The kernel fetches this part already.
    const bool grows = operation.kind == Kind::read_file && operation.read_ahead_bytes == 0;
    return {grows ? FIRST_BLOCK : CACHED_BLOCK, CACHED_BLOCK};
}

int read_all(const Operation& operation, Transfer& transfer, Blocks blocks, Digest& digest) {
    if (!operation.digest_from) return transfer.read({0, operation.length});
    const std::uint64_t from = *operation.digest_from;
    std::uint64_t block = blocks.first;
    int failed = 0;
    for (std::uint64_t at = 0; failed == 0 && at < operation.length;) {
        const std::uint64_t end = std::min(operation.length, at + block);
        failed = transfer.read({at, end});
        const std::uint64_t hashed = std::max(at, from);
        if (failed == 0 && hashed < end && !digest.update(operation.memory + hashed, end - hashed)) failed = -EFAULT;
        at = end;
        block = std::min(2 * block, blocks.most);
    }
    return failed;
}

int write_all(const Operation& operation, Transfer& transfer, const OperationFile& file) {
    const std::uint64_t head = operation.head_bytes;
    int failed = transfer.write({head, operation.length});
    if (failed != 0 || head == 0) return failed;
    if (operation.durability == Durability::before_head_and_answer) failed = file.sync();
    return failed != 0 ? failed : transfer.write({0, head});
}

}  // namespace

Outcome run_blocking(const Operation& operation, OperationFile& file) {
    Outcome outcome;
    Digest digest;
    Transfer transfer(operation, file);
    int failed = 0;
    if (operation.kind == Kind::sync) {
        failed = file.sync();
    } else if (operation.reads()) {
        failed = read_all(operation, transfer, blocks_of(operation, file), digest);
    } else {
        failed = write_all(operation, transfer, file);
    }
    const auto moved = operation.kind == Kind::sync ? 0 : static_cast<std::int64_t>(operation.length);
    outcome.result = file.conclude(operation, failed != 0 ? failed : moved);
    outcome.bounced = transfer.bounced();
    if (outcome.result >= 0 && operation.digest_from) outcome.digest = digest.finish();
    return outcome;
}

Outcome run_blocking(const Operation& operation) {
    if (operation.kind == Kind::copy) return copy_memory(operation);
    OperationFile file;
    if (const int failed = file.open(operation); failed != 0) return {.result = failed};
    return run_blocking(operation, file);
}

}  // namespace lmcache::io
