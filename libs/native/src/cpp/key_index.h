// From the hash of a key to the slots that may hold it.
//
// Open addressing with linear probing, in 256 parts that grow one by one, so that no growth takes long.  An entry is the
// slot and 32 more bits of the hash; the caller compares the key itself.  Removal closes the gap, so nothing piles up.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace lmcache {

class KeyIndex {
public:
    // Ask the memory for where `hash` would be.
    void prefetch(std::uint64_t hash) const {
        const Part& part = part_of(hash);
        if (!part.entries.empty()) __builtin_prefetch(&part.entries[part.home(hash)]);
    }

    // The first slot under this hash for which `same(slot)`, or -1.
    template <typename Same> std::int64_t find(std::uint64_t hash, Same same) const {
        const Part& part = part_of(hash);
        if (part.entries.empty()) return -1;
        for (std::size_t at = part.home(hash); part.entries[at] != EMPTY; at = part.next(at)) {
            const std::uint64_t entry = part.entries[at];
            if (tag_of(entry) == tag_of(hash) && same(slot_of(entry))) return slot_of(entry);
        }
        return -1;
    }

    // A slot that may be the one: the first whose bits agree, or -1.
    std::int64_t candidate(std::uint64_t hash) const {
        return find(hash, [](std::uint32_t) { return true; });
    }

    // Add what is not there.
    void add(std::uint64_t hash, std::uint32_t slot) {
        Part& part = part_of(hash);
        if (part.count * 3 >= part.entries.size() * 2) part.grow();
        part.place(entry_of(hash, slot));
        ++part.count;
    }

    // Remove what is there.
    void remove(std::uint64_t hash, std::uint32_t slot) {
        Part& part = part_of(hash);
        const std::uint64_t entry = entry_of(hash, slot);
        std::size_t gap = part.home(hash);
        while (part.entries[gap] != entry) gap = part.next(gap);
        for (std::size_t at = part.next(gap); part.entries[at] != EMPTY; at = part.next(at)) {
            const std::size_t from_home = (at - part.home(part.entries[at])) & part.mask();
            const std::size_t from_gap = (at - gap) & part.mask();
            if (from_home >= from_gap) {
                part.entries[gap] = part.entries[at];
                gap = at;
            }
        }
        part.entries[gap] = EMPTY;
        --part.count;
    }

private:
    static constexpr std::uint64_t EMPTY = ~std::uint64_t{0};
    static constexpr std::size_t PARTS = 256;

    // An entry has the upper half of the hash and the slot; a place within a part follows from the upper half alone.
    static std::uint32_t tag_of(std::uint64_t entry) { return static_cast<std::uint32_t>(entry >> 32); }
    static std::uint32_t slot_of(std::uint64_t entry) { return static_cast<std::uint32_t>(entry); }
    static std::uint64_t entry_of(std::uint64_t hash, std::uint32_t slot) { return (hash >> 32 << 32) | slot; }

    struct Part {
        std::vector<std::uint64_t> entries;
        std::size_t count = 0;

        std::size_t mask() const { return entries.size() - 1; }
        std::size_t home(std::uint64_t entry) const { return tag_of(entry) & mask(); }
        std::size_t next(std::size_t at) const { return (at + 1) & mask(); }

        void place(std::uint64_t entry) {
            std::size_t at = home(entry);
            while (entries[at] != EMPTY) at = next(at);
            entries[at] = entry;
        }

        void grow() {
            std::vector<std::uint64_t> larger(entries.empty() ? 16 : 2 * entries.size(), EMPTY);
            std::swap(entries, larger);
            for (const std::uint64_t entry : larger) {
                if (entry != EMPTY) place(entry);
            }
        }
    };

    Part& part_of(std::uint64_t hash) { return parts_[hash % PARTS]; }
    const Part& part_of(std::uint64_t hash) const { return parts_[hash % PARTS]; }

    std::array<Part, PARTS> parts_;
};

}  // namespace lmcache
