// One part of the fleet's directory: which owners have a key.  Not synchronised.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lmcache::fleet {

// Of a key: 64 bits of its space and hash.
using Fingerprint = std::uint64_t;
// An instance's worker and location, in one generation of what is known of them.  0: none.
using Owner = std::uint16_t;

enum class OwnerState : std::uint8_t { Dead = 0, Hidden = 1, Visible = 2 };

constexpr std::size_t OWNERS = 65536;

// Read without a lock, changed by one store.
using OwnerStates = std::array<std::atomic<OwnerState>, OWNERS>;

constexpr std::size_t ENTRIES = 5;

struct alignas(64) Line {
    Fingerprint keys[ENTRIES];
    std::uint32_t owners[ENTRIES];  // with SET: where a set is
    std::uint32_t used : 3;         // entries from the first on
    std::uint32_t passed : 29;
};
static_assert(sizeof(Line) == 64);

// Lines of all parts, on huge pages where the system has them.  Parts take them in blocks: so huge pages are full, whatever the
// parts' sizes.  Any thread.
class LineMemory {
public:
    static constexpr std::size_t BLOCK = 512;  // lines

    LineMemory();
    LineMemory(const LineMemory&) = delete;
    LineMemory& operator=(const LineMemory&) = delete;
    ~LineMemory();

    // The number of a block of empty lines.  It never moves.  Throws std::bad_alloc.
    std::uint32_t take();
    // Of block 0; block n begins n * BLOCK behind it.
    Line* begin() const { return begin_; }
    std::size_t bytes() const;

private:
    std::size_t reserved_bytes_;
    void* reserved_;
    Line* begin_;
    mutable std::mutex mutex_;  // guards the two below
    std::size_t taken_ = 0;
    std::size_t ready_ = 0;  // blocks that may be used
};

// A hash table with open addressing by lines.  A line has five entries; an entry is a fingerprint, and either one owner or the
// number of a set of owners, which a key with more than three has.  `passed` counts the entries that found this line full on
// the way from their own: a search ends at the first line with 0.
class DirectoryPart {
public:
    // It has `first_lines` lines first, and grows by a quarter.
    DirectoryPart(const OwnerStates& states, LineMemory& memory, double first_lines)
        : states_(&states), begin_(memory.begin()), memory_(&memory), next_lines_(first_lines) {}
    DirectoryPart(const DirectoryPart&) = delete;
    DirectoryPart& operator=(const DirectoryPart&) = delete;

    // Hints the processor that this key is needed soon.  Safe without the lock.
    void prefetch(Fingerprint key) const {
        const std::size_t size = size_.load(std::memory_order_acquire);  // before the blocks, which are at least as many
        if (size != 0) __builtin_prefetch(&line(home(key, size)), 1);
    }
    // The same for what is behind its line, once that is near: the next line where this one is full, or a set of owners.
    void prefetch_rest(Fingerprint key) const;

    // False: it was there.  Throws std::bad_alloc, and has changed nothing then.
    bool add(Fingerprint key, Owner owner);
    // False: it was not there.
    bool remove(Fingerprint key, Owner owner);

    // Calls `each(owner)` for every visible owner of the key.
    template <typename Each> void find(Fingerprint key, Each each) const;

    // Removes what dead owners have in `count` lines from `first` on.
    void sweep(std::size_t first, std::size_t count);

    std::size_t lines() const { return size_; }
    // Of its sets.  Its lines are in `memory`.
    std::size_t bytes() const;

private:
    static constexpr std::uint32_t SET = 0x80000000U;
    static constexpr std::size_t OWN_ENTRIES_MAX = 3;

    struct Place {
        std::size_t line;
        std::size_t entry;
    };

    // There are fewer than 2**32 lines.
    static std::size_t home(Fingerprint key, std::size_t lines) {
        return static_cast<std::size_t>(((key >> 32) * lines) >> 32);
    }
    std::size_t next(std::size_t line) const { return line + 1 == size_ ? 0 : line + 1; }
    Line& line(std::size_t at) const {
        const std::size_t block = blocks_.load(std::memory_order_acquire)[at / LineMemory::BLOCK];
        return begin_[block * LineMemory::BLOCK + at % LineMemory::BLOCK];
    }
    bool is_dead(std::uint32_t owner) const {
        return (*states_)[owner].load(std::memory_order_relaxed) == OwnerState::Dead;
    }

    void grow();
    void take_block();
    static bool put(Line& line, Fingerprint key, std::uint32_t owner);
    void insert(Fingerprint key, std::uint32_t owner);
    void erase(Place place);

    // Sets lie in one array: a count, a capacity, and that many owners; at even places.
    Owner* set_at(std::uint32_t entry) { return sets_.data() + 2 * static_cast<std::size_t>(entry & ~SET); }
    const Owner* set_at(std::uint32_t entry) const { return sets_.data() + 2 * static_cast<std::size_t>(entry & ~SET); }
    std::uint32_t make_set(const Owner* owners, std::size_t count, std::size_t capacity);
    void drop_set(std::uint32_t entry) { garbage_ += set_cells(set_at(entry)[1]); }
    static std::size_t set_cells(std::size_t capacity) { return (2 + capacity + 1) & ~std::size_t{1}; }
    bool add_to_set(std::uint32_t& entry, Fingerprint key, Owner owner);
    bool remove_from_set(std::uint32_t entry, Owner owner);
    // Once a third of the cells are not in use.
    void compact_sets();

    const OwnerStates* states_;
    Line* begin_;
    std::atomic<const std::uint32_t*> blocks_{nullptr};  // their numbers
    std::atomic<std::size_t> size_{0};                   // lines
    std::vector<Owner> sets_;
    std::size_t used_ = 0;
    std::size_t used_max_ = 0;  // it grows there
    LineMemory* memory_;
    double next_lines_;
    std::size_t taken_ = 0;                                  // blocks
    std::vector<std::unique_ptr<std::uint32_t[]>> numbers_;  // of blocks; the last is in use, those before may be read still
    std::size_t garbage_ = 0;  // cells of sets that are not in use
};

template <typename Each> void DirectoryPart::find(Fingerprint key, Each each) const {
    const std::size_t size = size_;
    if (size == 0) return;
    for (std::size_t at = home(key, size);;) {
        const Line& line = this->line(at);
        for (std::size_t entry = 0; entry < ENTRIES; ++entry) {
            if (line.keys[entry] != key) [[likely]] continue;
            if (entry >= line.used) break;
            if (line.owners[entry] & SET) {
                const Owner* set = set_at(line.owners[entry]);
                for (std::size_t member = 0; member < set[0]; ++member) {
                    if ((*states_)[set[2 + member]].load(std::memory_order_relaxed) == OwnerState::Visible) each(set[2 + member]);
                }
                return;
            }
            const Owner owner = static_cast<Owner>(line.owners[entry]);
            if ((*states_)[owner].load(std::memory_order_relaxed) == OwnerState::Visible) each(owner);
        }
        if (line.passed == 0) return;
        if (++at == size) at = 0;
    }
}

}  // namespace lmcache::fleet
