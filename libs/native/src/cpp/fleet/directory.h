// Which owners have which keys, for a whole fleet, in one process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "directory_part.h"

namespace lmcache::fleet {

constexpr std::size_t HASH_BYTES = 32;

// Chunk hashes, one behind the other.
struct Hashes {
    const std::uint8_t* data;
    std::size_t count;
};

// Any thread may call anything.  There is no global lock: each part has its own, and no call holds two.
class Directory {
public:
    // `secret` goes into every fingerprint, so that no sender of hashes can choose where they lie.
    explicit Directory(std::uint64_t secret);

    // Owners begin dead.  What a dead owner has is never found, and the sweep removes it.
    void set_state(Owner owner, OwnerState state);

    // How many were not there.  Stops where the owner is dead.
    std::size_t add(std::uint64_t space, Hashes hashes, Owner owner);
    // How many were there.
    std::size_t remove(std::uint64_t space, Hashes hashes, Owner owner);

    // The visible owners of each hash: those of hash i are owners[ends[i - 1]] to owners[ends[i] - 1].
    void find(std::uint64_t space, Hashes hashes, std::vector<std::uint32_t>& ends, std::vector<Owner>& owners) const;

    // How many hashes from the first on each group has, without a gap; `groups` has the group of each of the OWNERS, 0: none.
    // Groups that do not have the first are left out.
    std::vector<std::pair<std::uint16_t, std::uint32_t>> prefixes(std::uint64_t space, Hashes hashes,
                                                                  const std::uint16_t* groups) const;

    // Removes what dead owners have in up to `lines` lines, and goes on there the next time.  Returns how often the sweep has
    // been through all parts: what was dead before a whole pass is gone after it.
    std::uint64_t sweep(std::size_t lines);

    std::uint64_t count(Owner owner) const { return counts_[owner].load(std::memory_order_relaxed); }
    std::size_t bytes() const;

private:
    static constexpr std::size_t PARTS = 256;
    // Keys between a hint to the processor and the use of what it brings: first lines, then what is behind them.
    static constexpr std::size_t AHEAD = 32;
    static constexpr std::size_t REST_AHEAD = 16;
    static constexpr std::size_t SLICE = 65536;

    struct alignas(64) Guarded {
        Guarded(const OwnerStates& states, LineMemory& memory, double first_lines) : part(states, memory, first_lines) {}
        mutable std::mutex mutex;
        DirectoryPart part;
    };

    template <std::size_t... Number> Directory(std::uint64_t secret, std::index_sequence<Number...>);
    Fingerprint fingerprint(std::uint64_t space, const std::uint8_t* hash) const;
    static std::size_t part_of(Fingerprint key) { return key % PARTS; }
    void prefetch(Fingerprint key) const { parts_[part_of(key)].part.prefetch(key); }
    // In slices, and in each of them part by part.  `change(part, key)`.
    template <typename Change> std::size_t change(std::uint64_t space, Hashes hashes, Owner owner, Change change);
    // In their order, until `look(part, key)` is false, under the part's lock.
    template <typename Look> void each(std::uint64_t space, Hashes hashes, Look look) const;

    const std::uint64_t secret_;
    OwnerStates states_{};
    std::vector<std::atomic<std::uint64_t>> counts_;
    LineMemory memory_;
    std::array<Guarded, PARTS> parts_;

    std::mutex sweep_mutex_;  // guards the three below
    std::size_t sweep_part_ = 0;
    std::size_t sweep_line_ = 0;
    std::uint64_t passes_ = 0;
};

}  // namespace lmcache::fleet
