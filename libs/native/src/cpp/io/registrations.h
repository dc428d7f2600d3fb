// Memory and files that a ring knows beforehand.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <optional>

#include "ring.h"

namespace lmcache::io {

// All of it belongs to the ring's thread.
class Registrations {
public:
    explicit Registrations(Ring& ring);

    // Pins up to a piece of memory, which must not overlap registered memory.  False where the kernel refuses.
    bool add_memory(std::byte* memory, std::uint64_t length);
    // Of what was added last: the pieces that begin in this memory.
    void drop_memory(const std::byte* memory, std::uint64_t length);
    bool add_file(int fd);

    // The place of registered memory that has all of this.
    std::optional<std::uint16_t> memory_place(const std::byte* memory, std::uint64_t length) const;
    // The place of the registered file that `fd` still is.
    std::optional<std::uint16_t> file_place(int fd) const;

private:
    struct Piece {
        std::uint64_t end;
        std::uint16_t place;
    };
    struct File {
        dev_t device;
        ino_t inode;
        std::uint16_t place;
    };

    Ring& ring_;
    const bool has_memory_;
    const bool has_files_;
    std::map<std::uint64_t, Piece> pieces_;  // by the address at which they begin; they do not overlap
    std::map<int, File> files_;
};

}  // namespace lmcache::io
