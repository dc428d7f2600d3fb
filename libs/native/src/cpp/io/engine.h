// The engine as its user sees it: limits and answers in front, a mover behind.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "mover.h"

namespace lmcache::io {

class Engine {
public:
    // Throws std::system_error where threads, descriptors or a ring are not available.
    Engine(bool io_uring, unsigned workers, Limits limits);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    // Waits for what is in flight, however long that takes.
    ~Engine();

    const char* kind() const { return kind_; }
    int event_fd() const { return exchange_.event_fd(); }

    // False after `close`, and then nothing was taken.
    bool submit(std::vector<Operation>&& operations);
    std::vector<Answer> fetch() { return exchange_.fetch(); }
    Counters counters() const { return exchange_.counters(); }

    // Piece by piece, with other operations in between.  False where not all of it can be registered, or the engine is
    // closed meanwhile; then none of it is registered.
    bool register_memory(std::byte* memory, std::uint64_t length);
    bool register_file(int fd);
    std::uint64_t registered_bytes() const { return registered_bytes_; }

    // True once nothing is in flight and no thread is left.
    bool close(std::chrono::steady_clock::time_point deadline);

private:
    Exchange exchange_;
    std::shared_mutex mover_life_;  // locked, shared, while a caller uses `mover_`
    std::unique_ptr<Mover> mover_;
    const char* kind_;
    std::mutex registering_;  // locked while memory is registered
    std::atomic<std::uint64_t> registered_bytes_ = 0;
};

}  // namespace lmcache::io
