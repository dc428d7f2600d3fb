#include "engine.h"

#include <algorithm>
#include <utility>

namespace lmcache::io {

Engine::Engine(bool io_uring, unsigned workers, Limits limits)
    : exchange_(limits),
      mover_(io_uring ? make_ring_mover(exchange_, workers) : make_thread_mover(exchange_, workers)),
      kind_(io_uring ? "io_uring" : "threads") {}

Engine::~Engine() { close(std::chrono::steady_clock::time_point::max()); }

bool Engine::submit(std::vector<Operation>&& operations) {
    const std::shared_lock lock(mover_life_);
    std::vector<Operation> admitted;
    if (!exchange_.submit(std::move(operations), admitted)) return false;
    if (!admitted.empty()) mover_->start(std::move(admitted));
    return true;
}

bool Engine::register_memory(std::byte* memory, std::uint64_t length) {
    const std::lock_guard turn(registering_);
    const std::shared_lock lock(mover_life_);
    if (!mover_) return false;
    std::uint64_t done = 0;
    while (done < length && !exchange_.closed()) {
        const std::uint64_t piece = std::min(MEMORY_PIECE_BYTES, length - done);
        if (!mover_->register_memory(memory + done, piece)) break;
        done += piece;
        registered_bytes_ += piece;
    }
    if (done == length) return true;
    mover_->forget_memory(memory, done);
    registered_bytes_ -= done;
    return false;
}

bool Engine::register_file(int fd) {
    const std::shared_lock lock(mover_life_);
    return mover_ && !exchange_.closed() && mover_->register_file(fd);
}

bool Engine::close(std::chrono::steady_clock::time_point deadline) {
    exchange_.close();
    if (!exchange_.wait_idle(deadline)) return false;
    const std::unique_lock lock(mover_life_);
    mover_.reset();
    registered_bytes_ = 0;
    return true;
}

}  // namespace lmcache::io
