// What moves the bytes of operations that are in flight: by blocking calls on threads, or with io_uring.
#pragma once

#include <memory>
#include <vector>

#include "exchange.h"

namespace lmcache::io {

// Pinning this much takes some milliseconds, in which a ring serves no request.
constexpr std::uint64_t MEMORY_PIECE_BYTES = std::uint64_t{1} << 26;

class Mover {
public:
    Mover() = default;
    Mover(const Mover&) = delete;
    Mover& operator=(const Mover&) = delete;
    // Only once nothing is in flight.  Waits for the threads.
    virtual ~Mover() = default;

    // Any thread; does not block.  Each is answered through the exchange, and what it admits then is started.
    virtual void start(std::vector<Operation>&& operations) = 0;

    // False where registration is of no use, or the table is full.  At most MEMORY_PIECE_BYTES at a time, and by one caller.
    virtual bool register_memory(std::byte*, std::uint64_t) { return false; }
    // What was registered last.
    virtual void forget_memory(std::byte*, std::uint64_t) {}
    virtual bool register_file(int) { return false; }
};

std::unique_ptr<Mover> make_thread_mover(Exchange& exchange, unsigned workers);
// Throws std::system_error where this kernel does not have it or does not permit it.
std::unique_ptr<Mover> make_ring_mover(Exchange& exchange, unsigned workers);
bool has_io_uring();

}  // namespace lmcache::io
