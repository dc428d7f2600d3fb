// What an I/O engine is asked, and what it answers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace lmcache::io {

enum class Kind : int { read = 0, write = 1, read_file = 2, write_file = 3, copy = 4, sync = 5 };

// What must be on the medium before the answer.
enum class Durability : int { none = 0, before_answer = 1, before_head_and_answer = 2 };

// One operation, checked.  Fields that its kind has no use for keep their defaults.
struct Operation {
    Kind kind = Kind::sync;
    std::int64_t token = 0;
    int fd = -1;
    std::uint64_t offset = 0;
    std::byte* memory = nullptr;
    const std::byte* source = nullptr;  // of a copy
    std::uint64_t length = 0;
    std::uint64_t align = 0;       // 0: buffered; otherwise a power of two, and O_DIRECT
    std::uint64_t head_bytes = 0;  // written only after all the rest
    std::optional<std::uint64_t> digest_from;
    std::uint64_t read_ahead_bytes = 0;
    Durability durability = Durability::none;
    std::string temporary;
    std::string path;

    bool reads() const { return kind == Kind::read || kind == Kind::read_file; }
    bool writes() const { return kind == Kind::write || kind == Kind::write_file; }
    // May every transfer of it go between this memory and the medium as it is?
    bool aligned() const {
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        return align == 0 || ((address | offset | length | head_bytes) & (align - 1)) == 0;
    }
};

using DigestBytes = std::array<std::uint8_t, 16>;

struct Answer {
    std::int64_t token = 0;
    std::int64_t result = 0;  // bytes moved, or -errno
    std::optional<DigestBytes> digest = std::nullopt;
};

// Part of an operation's memory, in bytes from its beginning.
struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    std::uint64_t length() const { return end - begin; }
};

}  // namespace lmcache::io
