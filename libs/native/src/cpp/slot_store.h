// Everything that is known of each slot, a cache line apiece, in blocks that never move.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "python_values.h"

namespace lmcache {

constexpr std::uint32_t FREE = UINT32_MAX;
constexpr std::uint8_t WRITING = 1;
constexpr std::uint8_t LEAVING = 2;
constexpr std::uint8_t TEMPORARY = 4;

struct alignas(64) Slot {
    std::uint8_t hash[HASH_BYTES];
    std::uint32_t space = FREE;
    std::uint32_t holds = 0;
    std::uint32_t mark = 0;
    std::uint8_t flags = 0;

    bool used() const { return space != FREE; }
    bool ready() const { return used() && (flags & (WRITING | LEAVING)) == 0; }
    bool is(std::uint32_t other_space, const std::uint8_t* other_hash) const {
        return space == other_space && std::memcmp(hash, other_hash, HASH_BYTES) == 0;
    }
};

class SlotStore {
public:
    std::size_t size() const { return size_; }

    void grow(std::size_t count) {
        while (blocks_.size() * BLOCK < size_ + count) blocks_.push_back(std::make_unique<Slot[]>(BLOCK));
        size_ += count;
    }

    bool has(std::int64_t number) const { return number >= 0 && static_cast<std::size_t>(number) < size_; }

    Slot& operator[](std::size_t number) { return blocks_[number / BLOCK][number % BLOCK]; }
    const Slot& operator[](std::size_t number) const { return blocks_[number / BLOCK][number % BLOCK]; }

    // The slot that a Python integer names.  Throws IndexError.
    std::uint32_t known(PyObject* value) const {
        const std::int64_t number = number_of(value);
        if (!has(number)) throw nb::index_error("there is no such slot");
        return static_cast<std::uint32_t>(number);
    }

private:
    static constexpr std::size_t BLOCK = 1024;

    std::vector<std::unique_ptr<Slot[]>> blocks_;
    std::size_t size_ = 0;
};

}  // namespace lmcache
