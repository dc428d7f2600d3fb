#include "directory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

namespace lmcache::fleet {

namespace {

// Parts grow by a quarter each.  Their first sizes are spread evenly over such a step, so that a few parts grow with each report,
// and never all of them.
constexpr double FIRST_LINES_MOST = LineMemory::BLOCK;
constexpr double STEP = 1.25;

// The finalizer of splitmix64 (Steele, Lea, Flood 2014): a permutation of 64 bits.
std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

}  // namespace

Directory::Directory(std::uint64_t secret) : Directory(secret, std::make_index_sequence<PARTS>()) {}

template <std::size_t... Number>
Directory::Directory(std::uint64_t secret, std::index_sequence<Number...>)
    : secret_(secret),
      counts_(OWNERS),
      parts_{Guarded(states_, memory_, FIRST_LINES_MOST * std::pow(STEP, static_cast<double>(Number) / PARTS - 1))...} {}

void Directory::set_state(Owner owner, OwnerState state) {
    const OwnerState before = states_[owner].exchange(state);
    if (state == OwnerState::Dead || before == OwnerState::Dead) counts_[owner].store(0);
}

Fingerprint Directory::fingerprint(std::uint64_t space, const std::uint8_t* hash) const {
    std::uint64_t words[2];
    std::memcpy(words, hash, sizeof words);
    return mixed(mixed(words[0] ^ secret_) + words[1] + space);
}

template <typename Change>
std::size_t Directory::change(std::uint64_t space, Hashes hashes, Owner owner, Change change) {
    std::size_t changed = 0;
    const std::size_t slice = std::min(SLICE, hashes.count);
    const auto keys = std::make_unique_for_overwrite<Fingerprint[]>(slice), sorted = std::make_unique_for_overwrite<Fingerprint[]>(slice);
    for (std::size_t done = 0; done < hashes.count;) {
        const std::size_t count = std::min(slice, hashes.count - done);
        std::array<std::size_t, PARTS + 1> ends{};  // of the part before, first
        for (std::size_t at = 0; at < count; ++at) {
            keys[at] = fingerprint(space, hashes.data + (done + at) * HASH_BYTES);
            ++ends[part_of(keys[at]) + 1];
        }
        for (std::size_t part = 0; part < PARTS; ++part) ends[part + 1] += ends[part];
        for (std::size_t at = 0; at < count; ++at) sorted[ends[part_of(keys[at])]++] = keys[at];
        for (std::size_t at = 0; at < std::min(AHEAD, count); ++at) prefetch(sorted[at]);
        for (std::size_t number = 0, at = 0; number < PARTS; ++number) {
            if (at == ends[number]) continue;
            Guarded& guarded = parts_[number];
            const std::lock_guard lock(guarded.mutex);
            // Under the part's lock, so that a pass of the sweep that begins after the owner's death finds all of it.
            if (states_[owner].load() == OwnerState::Dead) return changed;
            for (; at < ends[number]; ++at) {
                if (at + AHEAD < count) prefetch(sorted[at + AHEAD]);
                if (at + REST_AHEAD < ends[number]) guarded.part.prefetch_rest(sorted[at + REST_AHEAD]);
                changed += change(guarded.part, sorted[at]);
            }
        }
        done += count;
    }
    return changed;
}

// In groups, whose lines are all on their way before the first lock: a lock waits for what was read before it.
template <typename Look> void Directory::each(std::uint64_t space, Hashes hashes, Look look) const {
    std::array<Fingerprint, AHEAD> keys;
    for (std::size_t done = 0; done < hashes.count; done += AHEAD) {
        const std::size_t count = std::min(AHEAD, hashes.count - done);
        for (std::size_t at = 0; at < count; ++at) {
            keys[at] = fingerprint(space, hashes.data + (done + at) * HASH_BYTES);
            prefetch(keys[at]);
        }
        for (std::size_t at = 0; count > 1 && at < count; ++at) {
            const Guarded& guarded = parts_[part_of(keys[at])];
            const std::lock_guard lock(guarded.mutex);
            guarded.part.prefetch_rest(keys[at]);
        }
        for (std::size_t at = 0; at < count; ++at) {
            const Guarded& guarded = parts_[part_of(keys[at])];
            const std::lock_guard lock(guarded.mutex);
            if (!look(guarded.part, keys[at])) return;
        }
    }
}

std::size_t Directory::add(std::uint64_t space, Hashes hashes, Owner owner) {
    const std::size_t added =
        change(space, hashes, owner, [owner](DirectoryPart& part, Fingerprint key) { return part.add(key, owner); });
    counts_[owner].fetch_add(added);
    return added;
}

std::size_t Directory::remove(std::uint64_t space, Hashes hashes, Owner owner) {
    const std::size_t removed =
        change(space, hashes, owner, [owner](DirectoryPart& part, Fingerprint key) { return part.remove(key, owner); });
    counts_[owner].fetch_sub(removed);
    return removed;
}

void Directory::find(std::uint64_t space, Hashes hashes, std::vector<std::uint32_t>& ends,
                     std::vector<Owner>& owners) const {
    ends.reserve(ends.size() + hashes.count);
    owners.reserve(owners.size() + hashes.count);
    each(space, hashes, [&](const DirectoryPart& part, Fingerprint key) {
        part.find(key, [&owners](Owner owner) { owners.push_back(owner); });
        ends.push_back(static_cast<std::uint32_t>(owners.size()));
        return true;
    });
}

std::vector<std::pair<std::uint16_t, std::uint32_t>> Directory::prefixes(std::uint64_t space, Hashes hashes,
                                                                         const std::uint16_t* groups) const {
    // Chunks of a prompt mostly have the same owners, one behind the other: such a run is one step.
    std::vector<std::uint32_t> steps(OWNERS);  // that each group has
    std::vector<std::uint32_t> ends;           // of the steps, in hashes
    std::vector<std::uint16_t> found;
    auto owners = std::make_unique_for_overwrite<Owner[]>(OWNERS), before = std::make_unique_for_overwrite<Owner[]>(OWNERS);
    std::size_t count_before = 0;
    each(space, hashes, [&](const DirectoryPart& part, Fingerprint key) {
        std::size_t count = 0;
        part.find(key, [&](Owner owner) { owners[count++] = owner; });
        if (count == 0) return false;
        if (count == count_before && std::equal(owners.get(), owners.get() + count, before.get())) {
            ++ends.back();
            return true;
        }
        const auto step = static_cast<std::uint32_t>(ends.size());
        bool longer = false;
        for (std::size_t at = 0; at < count; ++at) {
            const std::uint16_t group = groups[owners[at]];
            if (group == 0 || steps[group] != step) continue;
            steps[group] = step + 1;
            if (step == 0) found.push_back(group);
            longer = true;
        }
        if (!longer) return false;
        ends.push_back((step == 0 ? 0 : ends.back()) + 1);
        std::swap(owners, before);
        count_before = count;
        return true;
    });
    std::vector<std::pair<std::uint16_t, std::uint32_t>> result;
    result.reserve(found.size());
    for (const std::uint16_t group : found) result.emplace_back(group, ends[steps[group] - 1]);
    return result;
}

std::uint64_t Directory::sweep(std::size_t lines) {
    const std::lock_guard sweeping(sweep_mutex_);
    Guarded& guarded = parts_[sweep_part_];
    const std::lock_guard lock(guarded.mutex);
    guarded.part.sweep(sweep_line_, lines);
    sweep_line_ += lines;
    if (sweep_line_ >= guarded.part.lines()) {
        sweep_line_ = 0;
        if (++sweep_part_ == PARTS) {
            sweep_part_ = 0;
            ++passes_;
        }
    }
    return passes_;
}

std::size_t Directory::bytes() const {
    std::size_t all = memory_.bytes();
    for (const Guarded& guarded : parts_) {
        const std::lock_guard lock(guarded.mutex);
        all += guarded.part.bytes();
    }
    return all;
}

}  // namespace lmcache::fleet
